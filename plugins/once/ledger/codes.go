package ledger

import (
	"fmt"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The numbers of states in the tables, which are in the comments of the migrations, too.
func effectStates() []rules.State {
	return []rules.State{1: rules.Pending, 2: rules.Sending, 3: rules.Errored, 4: rules.Ambiguous, 5: rules.Success, 6: rules.Failed, 7: rules.Unknown, 8: rules.Cancelled}
}

func groupStates() []rules.GroupState {
	return []rules.GroupState{1: rules.GroupRunning, 2: rules.GroupPaused, 3: rules.GroupCancelled}
}

// codeOf returns the number of a state, or 0.
func codeOf[S comparable](states []S, state S) int64 {
	for i, s := range states {
		if i > 0 && s == state {
			return int64(i)
		}
	}
	return 0
}

func effectCode(s rules.State) int64     { return codeOf(effectStates(), s) }
func groupCode(s rules.GroupState) int64 { return codeOf(groupStates(), s) }

// stateColumn and groupStateColumn are destinations of a scan.
type (
	stateColumn      rules.State
	groupStateColumn rules.GroupState
)

// Scan implements sql.Scanner.
func (s *stateColumn) Scan(src any) error { return scanCode((*rules.State)(s), effectStates(), src) }

// Scan implements sql.Scanner. Null is running: a group without a row.
func (s *groupStateColumn) Scan(src any) error {
	if src == nil {
		*s = groupStateColumn(rules.GroupRunning)
		return nil
	}
	return scanCode((*rules.GroupState)(s), groupStates(), src)
}

func scanCode[S comparable](to *S, states []S, src any) error {
	n, ok := src.(int64)
	if !ok || n < 1 || n >= int64(len(states)) {
		return fmt.Errorf("the ledger has the unknown state %v: a newer version wrote it, or it was changed by hand", src)
	}
	*to = states[n]
	return nil
}
