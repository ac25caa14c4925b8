#!/bin/sh
# Brings Temporal's two schemas to the version of this image. It may run again.
set -eu
for pair in temporal:temporal temporal_visibility:visibility; do
  database=${pair%:*} folder=${pair#*:}
  sql() { temporal-sql-tool --plugin postgres12 --ep postgres --port 5432 --user temporal --db "$database" "$@"; }
  # "setup-schema" makes the table of versions, and fails where there is one.
  sql setup-schema --version 0.0 || echo "$database has a schema"
  sql update-schema --schema-dir "/etc/temporal/schema/postgresql/v12/$folder/versioned"
done
