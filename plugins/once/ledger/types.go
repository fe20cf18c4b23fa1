package ledger

import (
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Key names an effect. Its texts are compared byte by byte.
type Key struct {
	Kind  string `json:"kind"`  // a registered kind
	Group string `json:"group"` // 1 to 100 bytes
	ID    string `json:"id"`    // 1 to 100 bytes, unique in the group
}

// Group names the effects of a kind that share a pause, a cancellation and totals.
type Group struct {
	Kind string `json:"kind"`
	Name string `json:"group"`
}

// Kind is what the ledger has to know of a kind.
type Kind struct {
	Name   string
	Policy rules.Policy
	Limits Limits // of the settings
	// Grace is how long Claim leaves effects that Accept has accepted to ClaimRows. Zero: Claim finds them at once.
	Grace time.Duration
	// Results: what becomes of its effects is stored for RelayResults. See Options.Command.
	Results bool
	// Same reports whether two requests with one key, whose bytes differ, ask for the same effect. Nil: none do. It must not
	// panic, because transactions are open meanwhile.
	Same func(stored, offered []byte) bool
}

// Record is an effect to accept.
type Record struct {
	Key
	Part    string // a subtotal within the group; may be empty
	Payload []byte // the record as it came; at most MaxPayloadBytes
	Request []byte // the bytes that every attempt sends; nil: the payload
	Headers map[string]string
	// Origin says where the record came from, for people: a topic with partition and offset, or the
	// name of a caller.
	Origin    string
	NotBefore time.Time // earliest time of the first attempt; zero: at once
	// NoGrace has Claim find the effect at once, in a kind with a grace too: nobody will be told of its row.
	NoGrace bool
	// RecordKey is the key of its record in the topic. The ledger does not store it.
	RecordKey string
	// Published is when the record was published, for Recover. Zero: a caller asks for the effect now.
	Published time.Time
}

// MaxPayloadBytes is the limit of a payload, and of a request.
const MaxPayloadBytes = 64 << 10

// Accepted is the result of Accept for one record.
type Accepted int

// The results.
const (
	Fresh     Accepted = iota + 1 // it is new
	Known                         // the same effect was accepted before
	Cancelled                     // its group is cancelled: nothing is called
	Conflict                      // another request with the same key was accepted before
)

// Claimed is an effect under a lease of this instance, for one call.
type Claimed struct {
	Key
	Lookup  bool  // look the outcome up; otherwise send
	Epoch   int64 // of the lease, for Settle
	Number  int   // of the send, from 1
	Payload []byte
	Request []byte // never nil
	Headers map[string]string
	// LastSent is the start of the last send, and zero before the first one.
	LastSent time.Time
	// SinceLastCall is the time since the previous call started, also a lookup; 0 for the first one.
	SinceLastCall time.Duration
}

// End is the end of a call, for Settle.
type End struct {
	Key
	rules.CallResult
}

// Settled is the result of Settle for one call.
type Settled struct {
	State rules.State
	// Stale: a later lease has the effect. The answer was stored and changed nothing.
	Stale bool
	// DueIn is the time until the next attempt of an effect that is not settled.
	DueIn time.Duration
}

// Due says where a kind has work.
type Due struct {
	Lanes []int // lanes with an effect that may be claimed now
	// Next is the time until the next effect of any lane is due; negative: there is none.
	Next time.Duration
	// Limits of the kind that are in force.
	Limits InForce
}

// By is an operator and the reason of an action, for the audit.
type By struct {
	Who string `json:"who"`
	Why string `json:"why"`
}

// Status is a group with its totals. Accepted = Done + Failed + Unknown + Cancelled + Waiting + Calling.
type Status struct {
	Group
	State     rules.GroupState `json:"state"`
	CreatedAt time.Time        `json:"created_at"`
	Expected  int64            `json:"expected"` // effects that it will have, by Expect; 0: nobody has said
	Totals
	Waiting   int64         `json:"waiting"` // accepted and neither settled nor called at the moment
	Calling   int64         `json:"calling"` // under a lease
	OldestDue time.Duration `json:"-"`       // how long the oldest due effect waits; 0: none is due
	// ResumedFor is the time since it was resumed; 0: it is not running, or was never paused.
	ResumedFor time.Duration `json:"-"`
}

// Finished reports whether all effects that were expected are accepted, and all that were accepted are settled. Of a group of
// which nobody has said how many it will have, more may come.
func (s Status) Finished() bool {
	return s.Expected > 0 && s.Accepted >= s.Expected && s.unsettled() == 0
}

// Totals count the effects of a group or of a part of it.
type Totals struct {
	Part      string `json:"part,omitempty"` // empty: the whole group
	Accepted  int64  `json:"accepted"`
	Done      int64  `json:"done"`
	Failed    int64  `json:"failed"`
	Unknown   int64  `json:"unknown"`
	Cancelled int64  `json:"cancelled"`
}

// Explanation is everything that is known about an effect.
type Explanation struct {
	Key
	Part       string
	Group      rules.GroupState
	Row        rules.Row
	Origin     string
	Payload    []byte
	Request    []byte
	Headers    map[string]string
	NotBefore  time.Time
	Calls      []rules.Attempt // by epoch; an open call is last
	Audit      []Audit         // of the effect
	GroupAudit []Audit         // of its group
	Lost       *rules.Lost     // in which it may have been called for without a trace; nil: none
	Registered bool            // this program has the kind, and so its rules
	Repeat     rules.Repeat    // of the kind; zero if it is not registered
	NextCall   rules.Next      // Send or Lookup; rules.Ack: none
	NextCallIn time.Duration   // 0: now, or never
}

// Audit is one action of an operator.
type Audit struct {
	At time.Time `json:"at"`
	By
	Action   string `json:"action"` // pause, resume, cancel, limit, recover, replay, resolve, reveal, probe, send, enqueue
	Detail   string `json:"detail"`
	Database string `json:"database_user,omitempty"` // the role of the database session
}

// Problem is an effect that failed or ended unknown.
type Problem struct {
	Key
	State rules.State `json:"state"` // Failed or Unknown
	At    time.Time   `json:"at"`
	Class string      `json:"class"`
	Error string      `json:"error"`
}
