package console

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

func anAction() action {
	return action{operate.Action{About: operate.About{Name: "till open"}, Danger: operate.Safe}, "till", "till/open"}
}

// A form is good for an hour, and only while its use can't have been forgotten.
func TestOldFormsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUses()
		did := 0
		do := func(context.Context, operate.Use) (operate.Answer, error) {
			did++
			return operate.Answer{Value: did}, nil
		}
		form := func() *use {
			one := &use{action: anAction(), input: operate.Input{"order": {"7"}}}
			one.id = u.formID(one)
			return one
		}
		run := func(one *use) {
			_, err := u.begin(one, do)
			require.NoError(t, err)
			<-one.ended
		}
		old := form()
		time.Sleep(formLife)
		require.NoError(t, u.checkForm(old))
		time.Sleep(time.Millisecond)
		require.ErrorIs(t, u.checkForm(old), errOldForm)

		first, later := form(), form()
		require.NoError(t, u.checkForm(first))
		run(first)
		for i := range maxUses {
			time.Sleep(time.Millisecond)
			run(&use{id: fmt.Sprint("api-", i), action: anAction()})
		}
		_, known := u.get(first.id)
		require.False(t, known, "it is forgotten")
		require.Len(t, u.byID, maxUses)
		require.ErrorIs(t, u.checkForm(first), errOldForm, "a form whose use is forgotten would act again")
		require.ErrorIs(t, u.checkForm(later), errOldForm)
		require.NoError(t, u.checkForm(form()))

		newest, _ := u.get(fmt.Sprint("api-", maxUses-1))
		oldest, _ := u.get("api-0")
		require.False(t, u.state(newest).Forgotten)
		require.True(t, u.state(oldest).Forgotten)
		require.Nil(t, u.state(oldest).Answer.Value)
		require.NoError(t, u.stop(t.Context()))
	})
}

// A preview that hangs is waited for no longer than its limit, and holds its place until it returns.
func TestAPreviewThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUses()
		end := make(chan struct{})
		stuck := func(context.Context) (operate.Answer, error) {
			<-end
			return operate.Answer{}, nil
		}
		for range maxRunning {
			began := time.Now()
			_, err := u.look(t.Context(), stuck)
			require.ErrorContains(t, err, "no answer within 20s")
			require.Equal(t, previewTime, time.Since(began))
		}
		_, err := u.look(t.Context(), stuck)
		require.ErrorIs(t, err, errLooking)
		close(end)
		synctest.Wait()
		_, err = u.look(t.Context(), func(context.Context) (operate.Answer, error) { panic("nil client") })
		require.ErrorContains(t, err, "panic: nil client")
		u.drain()
		_, err = u.begin(&use{id: "x", action: anAction()}, nil)
		require.ErrorIs(t, err, errEnding)
		require.NoError(t, u.stop(t.Context()))
	})
}

// An action that panics has failed, and the process goes on.
func TestAnActionThatPanics(t *testing.T) {
	t.Parallel()
	u := newUses()
	one, err := u.begin(&use{id: "x", action: anAction()}, func(context.Context, operate.Use) (operate.Answer, error) { panic("nil client") })
	require.NoError(t, err)
	<-one.ended
	require.ErrorContains(t, u.state(one).Err, "panic: nil client")
	require.NoError(t, u.stop(t.Context()))
}
