package main

import (
	"context"
	"errors"
	"fmt"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"bobbin/contract"
	"bobbin/store"
)

// runMigrate brings the schema and Temporal's search attributes to this version. It may run any number of times, and at
// the same time elsewhere.
func runMigrate(ctx context.Context, cfg config, _ []string) error {
	_, err := persist(ctx, "Postgres (DATABASE_URL)", func() (struct{}, error) { return struct{}{}, store.Migrate(ctx, cfg.DatabaseURL) }, passes)
	if err != nil {
		return err
	}
	temporal, err := dialTemporal(ctx, cfg)
	if err != nil {
		return err
	}
	defer temporal.Close()
	if err := registerAttributes(ctx, temporal, cfg.TemporalNamespace); err != nil {
		return err
	}
	fmt.Println("The database and Temporal's search attributes are up to date.")
	return nil
}

func registerAttributes(ctx context.Context, temporal client.Client, namespace string) error {
	have, err := temporal.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	if err != nil {
		return fmt.Errorf("list search attributes of namespace %s: %w", namespace, err)
	}
	add := map[string]enums.IndexedValueType{}
	for _, name := range contract.SearchAttributes {
		if _, ok := have.CustomAttributes[name]; !ok {
			add[name] = enums.INDEXED_VALUE_TYPE_KEYWORD
		}
	}
	if len(add) == 0 {
		return nil
	}
	_, err = temporal.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
		Namespace: namespace, SearchAttributes: add,
	})
	if exists := (*serviceerror.AlreadyExists)(nil); errors.As(err, &exists) {
		return nil
	}
	return err
}
