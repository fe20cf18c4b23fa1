package ledger

import (
	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// Multi-row statements take one array per column. These functions turn rows into columns, in the
// order of the parameters.

func promotionArrays(ps []payouts.Promotion) (types []string, ids []int64) {
	types, ids = make([]string, len(ps)), make([]int64, len(ps))
	for i, p := range ps {
		types[i], ids[i] = string(p.Type), p.ID
	}
	return types, ids
}

func keyArrays(keys []payouts.Key) (types []string, promotions, targets []int64) {
	types, promotions, targets = make([]string, len(keys)), make([]int64, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		types[i], promotions[i], targets[i] = string(k.Type), k.Promotion, k.Target
	}
	return types, promotions, targets
}

func queueInserts(b *pgx.Batch, rows []*storedRow) {
	byKey := make(map[payouts.Key]*storedRow, len(rows))
	for _, r := range rows {
		byKey[r.Key] = r
	}
	b.Queue(insertPayouts.postgres+" RETURNING id, type, promotion_id, target_id", insertPayouts.arrays(rows)...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id int64
			var k payouts.Key
			if err := rows.Scan(&id, (*string)(&k.Type), &k.Promotion, &k.Target); err != nil {
				return err
			}
			byKey[k].ID = id
		}
		return rows.Err()
	})
}
