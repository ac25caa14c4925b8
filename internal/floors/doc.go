// Package floors holds the house together: its test reads the imports of every Go file and fails where one points up, or
// where a package reaches for a module that has another owner. rooms_test.go is the table.
package floors
