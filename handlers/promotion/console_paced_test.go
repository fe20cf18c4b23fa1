package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// A read that takes long is repeated seldom, and the page says how old its numbers are.
func TestASlowReadIsNotRepeatedWithEachLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reads, takes := 0, 300*time.Millisecond
		var broken error
		load := pace("id", func(context.Context, console.Query) (console.Block, error) {
			reads++
			time.Sleep(takes)
			return console.Text(fmt.Sprint("read ", reads)), broken
		})
		look := func(id string) string {
			block, err := load(t.Context(), console.Query{Input: operate.Input{"id": {id}}})
			if err != nil {
				return err.Error()
			}
			text, err := json.Marshal(block.JSON())
			require.NoError(t, err)
			return string(text)
		}
		require.Equal(t, `"read 1"`, look("a"))
		require.Equal(t, `"read 1"`, look("a"), "another tab")
		time.Sleep(5 * time.Second)
		require.Equal(t, `["read 1","These are the numbers of 5s ago, because to read them takes 300ms."]`, look("a"))
		require.Equal(t, `"read 2"`, look("b"), "another campaign")
		time.Sleep(time.Second)
		require.Equal(t, `"read 3"`, look("a"))
		takes = time.Millisecond
		time.Sleep(7 * time.Second)
		require.Equal(t, `"read 4"`, look("a"))
		time.Sleep(30 * time.Millisecond)
		require.Equal(t, `"read 5"`, look("a"), "a quick one is read with each look")
		time.Sleep(time.Minute)
		broken = errors.New("the ledger does not answer")
		require.Equal(t, broken.Error(), look("a"))
		require.Equal(t, broken.Error(), look("a"))
		require.Equal(t, 7, reads, "an error is not kept")
		broken = nil
		for i := range 100 {
			look(fmt.Sprint(i))
		}
		require.Equal(t, `"read 107"`, look("99"))
		require.Equal(t, `"read 108"`, look("0"), "it keeps the answers of a few")
	})
}
