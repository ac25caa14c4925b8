#!/bin/sh
# Run once, when the data folder is made: a role and databases for each of the two that share this server.
set -eu
psql -v ON_ERROR_STOP=1 -v bobbin="$DATABASE_PASSWORD" -v temporal="$TEMPORAL_DATABASE_PASSWORD" -U postgres <<'SQL'
CREATE ROLE bobbin LOGIN PASSWORD :'bobbin';
CREATE DATABASE bobbin OWNER bobbin;
CREATE ROLE temporal LOGIN PASSWORD :'temporal';
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
SQL
