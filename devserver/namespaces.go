package main

import (
	"context"
	"fmt"
	"maps"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/metrics"
	"go.temporal.io/server/common/persistence"
	"go.temporal.io/server/common/persistence/serialization"
	"go.temporal.io/server/common/persistence/sql"
	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	"go.temporal.io/server/common/resolver"
	"go.temporal.io/server/common/searchattribute/sadefs"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"
)

// prepareNamespaces makes the namespaces that are missing and adds the search
// attributes that are missing in those that exist. It writes to the store before
// the server starts, so no cache can be stale, and the first request finds all.
func prepareNamespaces(c *config.SQL, o *options) error {
	for _, name := range o.namespaces {
		ns, err := sqliteschema.NewNamespaceConfig(clusterName, name, false, o.searchAttributes)
		if err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
		ns.Detail.Config.Retention = durationpb.New(o.retention)
		// Despite its package it writes through the plugin's interface, so to
		// Postgres too. It leaves a namespace that exists as it is.
		if err := sqliteschema.CreateNamespaces(c, ns); err != nil {
			return fmt.Errorf("make namespace %s: %w", name, err)
		}
	}
	db, err := sql.NewSQLDB(sqlplugin.DbKindMain, c, resolver.NewNoopResolver(), log.NewNoopLogger(), metrics.NoopMetricsHandler)
	if err != nil {
		return fmt.Errorf("open store: %w", err)
	}
	defer func() { _ = db.Close() }()
	for _, name := range o.namespaces {
		if err := addSearchAttributes(db, name, o.searchAttributes); err != nil {
			return fmt.Errorf("search attributes of namespace %s: %w", name, err)
		}
	}
	return nil
}

// addSearchAttributes gives each attribute that the namespace lacks a free
// column of its type. The columns (Keyword01, Int01 and so on) are fixed; a
// namespace only holds which name stands for which.
func addSearchAttributes(db sqlplugin.DB, namespace string, want map[string]enumspb.IndexedValueType) error {
	ctx := context.Background()
	rows, err := db.SelectFromNamespace(ctx, sqlplugin.NamespaceFilter{Name: &namespace})
	if err != nil {
		return err
	}
	if len(rows) != 1 {
		return fmt.Errorf("%d rows of that name", len(rows))
	}
	row, codec := rows[0], serialization.NewSerializer()
	detail, err := codec.NamespaceDetailFromBlob(persistence.NewDataBlob(row.Data, row.DataEncoding))
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	aliases := detail.Config.CustomSearchAttributeAliases
	changed, err := withAliases(aliases, want)
	if err != nil || maps.Equal(aliases, changed) {
		return err
	}
	detail.Config.CustomSearchAttributeAliases = changed
	blob, err := codec.NamespaceDetailToBlob(detail)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	row.Data, row.DataEncoding = blob.GetData(), blob.GetEncodingType().String()
	_, err = db.UpdateNamespace(ctx, &row)
	return err
}

// withAliases returns column → name with what is missing added.
func withAliases(have map[string]string, want map[string]enumspb.IndexedValueType) (map[string]string, error) {
	columns := sadefs.GetDBIndexSearchAttributes(nil).CustomSearchAttributes
	all, columnOf := map[string]string{}, map[string]string{}
	for column, name := range have {
		all[column], columnOf[name] = name, column
	}
	for name, kind := range want {
		if column, ok := columnOf[name]; ok {
			if columns[column] != kind {
				return nil, fmt.Errorf("%s is of type %v already; it can't become %v", name, columns[column], kind)
			}
			continue
		}
		column := freeColumn(columns, all, kind)
		if column == "" {
			return nil, fmt.Errorf("no column of type %v is left for %s", kind, name)
		}
		all[column] = name
	}
	return all, nil
}

func freeColumn(columns map[string]enumspb.IndexedValueType, taken map[string]string, kind enumspb.IndexedValueType) string {
	for column, t := range columns {
		if _, ok := taken[column]; !ok && t == kind {
			return column
		}
	}
	return ""
}
