package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// olderRecord is a record of WAITING_QUEUE_INDEX_RECORD in the older system.
type olderRecord struct {
	UserID     string `json:"userId"`
	EventID    string `json:"eventId"`
	Idx        int64  `json:"idx"`
	InstanceID string `json:"instanceId"`
}

// A program of the older system reads the keys: their types, JSON records and stream fields are
// the same.
func TestProgramsOfTheOlderSystemReadTheKeys(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ctx := t.Context()
		strict := func(text string, to any) {
			t.Helper()
			d := json.NewDecoder(strings.NewReader(text))
			d.DisallowUnknownFields()
			require.NoError(t, d.Decode(to), text)
		}
		// A group that reads nothing keeps the entries.
		for _, stream := range []string{s.key("ENTRY"), "DISPATCH:apart-1"} {
			require.NoError(t, s.redis.XGroupCreateMkStream(ctx, stream, s.event, "$").Err())
		}
		const name = `ann "the \ first"`
		user := s.user(name)
		s.change("open", `,"capacity":0`)
		ann := s.enter(name, 0)
		index := ann.all("connected")[0].Index
		waiting := s.redis.ZRangeWithScores(ctx, s.key("WAITING"), 0, -1).Val()
		require.Len(t, waiting, 1)
		var member struct {
			UserID string `json:"userId"`
		}
		strict(waiting[0].Member.(string), &member)
		require.Equal(t, []any{user, float64(index)}, []any{member.UserID, waiting[0].Score})
		var record olderRecord
		strict(s.redis.HGet(ctx, s.key("WAITING_QUEUE_INDEX_RECORD"), user).Val(), &record)
		require.Equal(t, olderRecord{user, s.event, index, "apart-1"}, record)
		require.Equal(t, "true", s.redis.HGet(ctx, s.key("WAITING_USER_IDS"), user).Val())
		require.Equal(t, fmt.Sprint(index), s.redis.HGet(ctx, s.key("WAITING_QUEUE_IDX"), s.event).Val())
		s.equals("free slots", "0", func() any { return s.slots() })

		s.change("set", `,"capacity":1`)
		lease := ann.promoted()
		for _, stream := range []string{s.key("ENTRY"), "DISPATCH:apart-1"} {
			s.equals(stream+" has the promotion", []string{user, s.event, "apart-1"}, func() any {
				for _, e := range s.redis.XRange(ctx, stream, "-", "+").Val() {
					if e.Values["eventId"] == s.event {
						return []any{e.Values["userId"], e.Values["eventId"], e.Values["instanceId"]}
					}
				}
				return nil
			})
		}
		require.Equal(t, lease.JTI, s.redis.Get(ctx, s.key("ENTRY_TOKEN")+":"+user).Val())
		require.Zero(t, s.redis.Exists(ctx, s.key("WAITING"), s.key("WAITING_QUEUE_INDEX_RECORD"), s.key("WAITING_USER_IDS")).Val())
	}, roomApart)
}

// A queue with the records of the older system is served: its users have their indexes, and are
// promoted before all who enter later.
func TestAQueueOfTheOlderSystemIsServed(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		ctx := t.Context()
		for i, user := range []string{s.user("old-1"), s.user("old-2"), s.user("old-3")} {
			record, err := json.Marshal(olderRecord{user, s.event, int64(i + 1), "a broker of the older system"})
			require.NoError(t, err)
			require.NoError(t, s.redis.ZAdd(ctx, s.key("WAITING"), goredis.Z{Score: float64(i + 1), Member: `{"userId":"` + user + `"}`}).Err())
			require.NoError(t, s.redis.HSet(ctx, s.key("WAITING_QUEUE_INDEX_RECORD"), user, record).Err())
			require.NoError(t, s.redis.HSet(ctx, s.key("WAITING_USER_IDS"), user, "true").Err())
		}
		require.NoError(t, s.redis.HSet(ctx, s.key("WAITING_QUEUE_IDX"), s.event, 3).Err())
		s.change("open", `,"capacity":0`)
		ann := s.enter("ann", 0)
		ann.stands(3, 4)
		second := s.enter("old-2", 1)
		place := second.all("connected")[0]
		require.Equal(t, []any{int64(2), true}, []any{place.Index, place.Resumed})
		second.stands(1, 4)
		s.change("set", `,"capacity":3`)
		second.promoted()
		first := s.enter("old-1", 0)
		require.EqualValues(t, 1, first.all("connected")[0].Index)
		first.promoted()
		ann.stands(0, 1)
		require.Empty(t, ann.all("promoted"))
		require.EqualValues(t, 3, s.status().Promoted)
	}, roomApart)
}
