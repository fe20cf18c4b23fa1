package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
)

// peerConfig is what a peer gets on its command line.
type peerConfig struct {
	Brokers              []string
	Redis, Postgres, API string
	Targets              int
}

func (c peerConfig) String() string { return string(must(json.Marshal(c))) }

// programs are what this binary also is: the peers of a campaign, the far side of effects, and the watchers of jobs. Each
// gets its settings on the command line.
func programs() map[string]func(ctx context.Context, config string, out io.Writer) error {
	return map[string]func(context.Context, string, io.Writer) error{"bare": peer(payBare), "stock": peer(payStock), "watch": watch, "far-side": farSide}
}

// peer runs the bare loop or the stock flow. It prints a line when it is ready, and another one
// when all payouts are settled. Then it waits for a signal.
func peer(pay func(ctx context.Context, c peerConfig, ready func())) func(context.Context, string, io.Writer) error {
	return func(ctx context.Context, config string, out io.Writer) error {
		return try(func() {
			var c peerConfig
			check(json.Unmarshal([]byte(config), &c))
			pay(ctx, c, func() { fmt.Fprintln(out, "running") })
			fmt.Fprintln(out, "settled")
			<-ctx.Done()
		})
	}
}

// peerTable is the ledger of both peers. The columns have the names of the product's ledger.
const peerTable = `CREATE TABLE payouts (
	target_id bigint PRIMARY KEY, state text NOT NULL, attempts int NOT NULL DEFAULT 0, payload bytea NOT NULL,
	transaction_key text, accepted_at timestamptz NOT NULL DEFAULT now(), settled_at timestamptz)`

func peerLedger(ctx context.Context, dsn string) *pgxpool.Pool {
	config := must(pgxpool.ParseConfig(dsn))
	config.MaxConns = 10 // as the product's ledger
	db := must(pgxpool.NewWithConfig(ctx, config))
	must(db.Exec(ctx, peerTable))
	return db
}

// record is a record of the publish topic, and the request that it leads to.
type record struct {
	PromotionID        int64 `json:"promotionId"`
	PromotionSummaryID int64 `json:"promotionSummaryId"`
	TargetID           int64 `json:"targetId"`
	Amount             int64 `json:"amount"`
}

// charger calls the Money API.
type charger struct {
	url    string
	client *http.Client
}

func newCharger(api string, slots int) charger {
	return charger{api + point().Operation.Path, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: slots}}}
}

// charge pays one record and returns the transaction key.
func (c charger) charge(ctx context.Context, payload []byte) (key string) {
	var r record
	check(json.Unmarshal(payload, &r))
	req := must(http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(must(json.Marshal(r)))))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "POINT:"+strconv.FormatInt(r.PromotionID, 10)+":"+strconv.FormatInt(r.TargetID, 10))
	answer, err := c.client.Do(req)
	check(err)
	defer answer.Body.Close()
	var charged struct {
		TransactionKey string `json:"transactionKey"`
	}
	check(json.NewDecoder(answer.Body).Decode(&charged))
	expect(answer.StatusCode == http.StatusOK && charged.TransactionKey != "", "the Money API answered %s", answer.Status)
	must(io.Copy(io.Discard, answer.Body))
	return charged.TransactionKey
}
