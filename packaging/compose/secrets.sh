#!/bin/sh
# Writes the secrets of compose.yaml into the folder $1: random ones, once, each readable only for the user
# of the service that needs it. Later runs change nothing, because PostgreSQL keeps its first password.
# It needs openssl and the right to give files away.
set -eu
cd "$1"
if [ -e ledger-dsn ]; then exit; fi
umask 077

password=$(openssl rand -hex 24)
printf %s "$password" >postgres-password
printf %s "$(openssl rand -hex 24)" >grafana-password
printf %s "$(openssl rand -hex 24)" >shop-token
openssl genpkey -algorithm ed25519 -out token.pem
printf %s "postgres://millrace:$password@postgres:5432/millrace?sslmode=disable" >ledger-dsn.new

chown 472:0 grafana-password
chown 65532:65532 shop-token token.pem ledger-dsn.new
mv ledger-dsn.new ledger-dsn # the last one: its name says that all are there
