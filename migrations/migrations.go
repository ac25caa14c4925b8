// Package migrations embeds the SQL files that build Bobbin's schema. Each has an up and a down half; they run in the
// order of their numbers.
package migrations

import "embed"

// FS holds the migration files at its root.
//
//go:embed *.sql
var FS embed.FS
