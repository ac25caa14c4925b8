package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/iancoleman/strcase"
	"github.com/jackc/pgx/v5"
	"github.com/jmoiron/sqlx"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin/postgresql/driver"
	"go.temporal.io/server/tools/common/schema"
	sqltool "go.temporal.io/server/tools/sql"
)

const (
	mainSchema       = "temporal"
	visibilitySchema = "temporal_visibility"

	// Each of the four services has pools of its own, so a server has at most
	// four times the sum of these connections; some 25 when it is busy.
	mainConns       = 16
	visibilityConns = 6

	// ownerKey is the advisory lock of the one server that may use the database.
	ownerKey = 0x626f6262696e7470 // "bobbintp"
	// ownerWait bounds the wait for the server before us, which may be stopping.
	ownerWait = 15 * time.Second
	setupWait = 2 * time.Minute
)

// openPostgres locks the database against another server like this one, then
// makes both schemas or brings them up to this server's version.
func openPostgres(dsn string, logger log.Logger) (*store, error) {
	unlock, err := prepareDatabase(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	st := &store{shards: postgresShards, close: sync.OnceFunc(unlock)}
	if st.main, err = openSchema(dsn, mainSchema, "postgresql/v12/temporal", mainConns, logger); err == nil {
		st.visibility, err = openSchema(dsn, visibilitySchema, "postgresql/v12/visibility", visibilityConns, logger)
	}
	if err != nil {
		st.close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return st, nil
}

// prepareDatabase takes the owner's lock and keeps it on a connection of its own
// (two servers on one store would take the shards from each other without end),
// and makes what Temporal's own migrations expect to be there.
func prepareDatabase(dsn string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), setupWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if err := takeOwnership(ctx, conn); err != nil {
		conn.Close(ctx)
		return nil, err
	}
	// The migrations would put the extension into temporal_visibility, where the
	// rest of the database would not find it.
	for _, stmt := range []string{
		"CREATE EXTENSION IF NOT EXISTS btree_gin WITH SCHEMA public",
		"CREATE SCHEMA IF NOT EXISTS " + mainSchema,
		"CREATE SCHEMA IF NOT EXISTS " + visibilitySchema,
	} {
		if _, err := conn.Exec(ctx, stmt); err != nil {
			conn.Close(ctx)
			return nil, fmt.Errorf("%s: %w", stmt, err)
		}
	}
	return func() { conn.Close(context.Background()) }, nil
}

func takeOwnership(ctx context.Context, conn *pgx.Conn) error {
	deadline := time.Now().Add(ownerWait)
	for {
		var mine bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(ownerKey)).Scan(&mine); err != nil {
			return fmt.Errorf("lock database: %w", err)
		}
		if mine {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("another devserver uses this database; stop it first")
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// openSchema migrates one schema and returns how the server reaches it. The
// server's statements name no schema, so search_path decides.
func openSchema(dsn, name, migrations string, conns int, logger log.Logger) (*config.SQL, error) {
	own, err := withSearchPath(dsn, name+",public")
	if err != nil {
		return nil, err
	}
	c := &config.SQL{
		PluginName: postgresql.PluginNamePGX,
		// The plugin builds its DSN as postgres://user@host/…, where a unix
		// socket has no place; Connect takes ours as it is.
		Connect: func(*config.SQL) (*sqlx.DB, error) { return connect(own, conns) },
		// With Connect the name is only the key of the row that holds the
		// schema's version, so it need not be that of the database.
		DatabaseName: name,
	}
	if err := migrate(c, migrations, logger); err != nil {
		return nil, fmt.Errorf("schema %s: %w", name, err)
	}
	return c, nil
}

// connect does what the plugin does with a DSN that it built itself.
func connect(dsn string, conns int) (*sqlx.DB, error) {
	db, err := (&driver.PGXDriver{}).CreateConnection(dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxLifetime(time.Hour)
	db.MapperFunc(strcase.ToSnake)
	return db, nil
}

// withSearchPath adds the setting to a DSN of either form.
func withSearchPath(dsn, path string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return dsn + " search_path='" + path + "'", nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return "", fmt.Errorf("parse DSN: %w", err)
	}
	q := u.Query()
	q.Set("search_path", path)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// migrate runs Temporal's own migrations that are not in yet.
func migrate(c *config.SQL, migrations string, logger log.Logger) error {
	conn, err := sqltool.NewConnection(c, logger)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	if _, err := conn.ReadSchemaVersion(); err != nil { // no version table yet
		if err := schema.NewSetupSchemaTask(conn, &schema.SetupConfig{InitialVersion: "0.0"}, logger).Run(); err != nil {
			return fmt.Errorf("set up versions: %w", err)
		}
	}
	if err := schema.NewUpdateSchemaTask(conn, &schema.UpdateConfig{SchemaName: migrations}, logger).Run(); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return nil
}
