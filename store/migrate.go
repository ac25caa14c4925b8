package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"bobbin/migrations"
)

// Migrate brings a database's schema to this version. Any number of processes may call it at once.
func Migrate(ctx context.Context, dsn string) error {
	p, done, err := migrator(dsn)
	if err != nil {
		return err
	}
	defer done()
	_, err = p.Up(ctx)
	return wrap("migrate", err)
}

// migrator returns goose's provider, which keeps other processes out with a session lock.
func migrator(dsn string) (*goose.Provider, func(), error) {
	cc, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, nil, errors.New("migrate: the database URL cannot be read") // the cause would quote the password
	}
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, nil, wrap("migrate", err)
	}
	sqlDB := stdlib.OpenDB(*cc)
	p, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations.FS, goose.WithSessionLocker(locker))
	if err != nil {
		_ = sqlDB.Close()
		return nil, nil, wrap("migrate", err)
	}
	return p, func() { _ = sqlDB.Close() }, nil
}
