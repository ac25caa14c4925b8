package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	sqliteschema "go.temporal.io/server/schema/sqlite"
)

// Shards split the work inside the history service. Their number is fixed when
// a store is made; the server goes on with what it finds there.
const (
	sqliteShards   = 1
	postgresShards = 4
)

// store is where the server keeps its state: workflows in main, what lists
// search in visibility. They may be the same.
type store struct {
	main, visibility *config.SQL
	shards           int32
	close            func() // safe to call twice
}

func (s *store) persistence() config.Persistence {
	return config.Persistence{
		DefaultStore:     "main",
		VisibilityStore:  "visibility",
		NumHistoryShards: s.shards,
		DataStores:       map[string]config.DataStore{"main": {SQL: s.main}, "visibility": {SQL: s.visibility}},
	}
}

func openStore(o *options, logger log.Logger) (*store, error) {
	switch {
	case o.postgres != "":
		return openPostgres(o.postgres, logger)
	case o.dbFilename != "":
		return openSQLiteFile(o.dbFilename)
	default:
		return sqliteStore("devserver", map[string]string{"mode": "memory", "cache": "shared"}), nil
	}
}

func sqliteStore(name string, attributes map[string]string) *store {
	c := &config.SQL{PluginName: sqlite.PluginName, DatabaseName: name, ConnectAttributes: attributes}
	return &store{main: c, visibility: c, shards: sqliteShards, close: func() {}}
}

// openSQLiteFile makes the file if it is missing. The plugin has no migrations,
// so the schema of a file stays that of the version which made it.
func openSQLiteFile(path string) (*store, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := makeSQLiteFile(path); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, fmt.Errorf("database file: %w", err)
	}
	return sqliteStore(path, map[string]string{"mode": "rw", "journal_mode": "wal", "synchronous": "1"}), nil
}

// makeSQLiteFile sets up the schema under another name first, so that a kill
// leaves no file with half a schema.
func makeSQLiteFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("folder of database file: %w", err)
	}
	half := path + ".new"
	if err := os.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove half-made database file: %w", err)
	}
	if err := sqliteschema.SetupSchema(sqliteStore(half, map[string]string{"mode": "rwc"}).main); err != nil {
		return fmt.Errorf("set up schema in %s: %w", half, err)
	}
	if err := os.Rename(half, path); err != nil {
		return fmt.Errorf("name database file: %w", err)
	}
	return nil
}
