package event_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/pipeline"
)

var origin = pipeline.Origin{Source: "scan:events:3", Position: "scan:events:3@1700000000000-7"}

func TestParseTheFieldsOfAnEntry(t *testing.T) {
	t.Parallel()
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	want := event.Event{
		Domain: "scan", JobID: "J-1", Stage: "ocr", Seq: 4, Status: "running", Data: json.RawMessage(`{"page": [1]}`),
		Timestamp: "1700000000.25", Traceparent: trace, EventID: "e1", StreamID: "1700000000000-7",
	}
	for name, payload := range map[string]string{
		"texts": `{"job_id":"J-1","stage":"ocr","seq":"4","status":"running","data":"{\"page\": [1]}","timestamp":"1700000000.25","traceparent":"` + trace + `","event_id":"e1","more":"x"}`,
		"typed": `{"job_id":"J-1","stage":"ocr","seq":4,"status":"running","data":{"page": [1]},"timestamp":1700000000.25,"traceparent":"` + trace + `","event_id":"e1","more":{}}`,
	} {
		e, err := event.DefaultStages().Parse([]byte(payload), origin)
		require.NoError(t, err, name)
		require.Equal(t, want, e, name)
	}
	text, err := want.JSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"domain":"scan","job_id":"J-1","stage":"ocr","seq":4,"status":"running","data":{"page":[1]},"timestamp":"1700000000.25",
		"traceparent":"`+trace+`","event_id":"e1","stream_id":"1700000000000-7"}`, string(text))
	require.NotContains(t, string(text), "\n")
	again, err := event.Decode(text)
	require.NoError(t, err)
	want.Data = json.RawMessage(`{"page":[1]}`)
	require.Equal(t, want, again)
	_, err = event.Decode([]byte("{"))
	require.Error(t, err)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for payload, class := range map[string]string{
		`{"stage":"a","seq":1}`:                                                        event.ClassMissingJobID,
		`{"job_id":"","stage":"a","seq":1}`:                                            event.ClassMissingJobID,
		`{"job_id":null,"stage":"a","seq":1}`:                                          event.ClassMissingJobID,
		`{"job_id":"a}b","stage":"a","seq":1}`:                                         event.ClassBadEvent,
		`{"job_id":"a\u0000","stage":"a","seq":1}`:                                     event.ClassBadEvent,
		`{"job_id":"` + long(129) + `","stage":"a"}`:                                   event.ClassBadEvent,
		`{"job_id":7,"stage":"a","seq":1}`:                                             event.ClassBadEvent,
		`{"job_id":"a","seq":1}`:                                                       event.ClassBadEvent,
		`{"job_id":"a","stage":"` + long(129) + `"}`:                                   event.ClassBadEvent,
		`{"job_id":"a","stage":"a"}`:                                                   event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":0}`:                                           event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":"-1"}`:                                        event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":1.5}`:                                         event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":"one"}`:                                       event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":9007199254740992}`:                            event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":1e30}`:                                        event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":[1]}`:                                         event.ClassBadEvent,
		`{"job_id":"a","stage":"a","seq":1,"data":"no"}`:                               event.ClassBadEvent,
		`{"job_id":"a","stage":"a","seq":1,"data":"{"}`:                                event.ClassBadEvent,
		`{"job_id":"a","stage":"a","seq":"01"}`:                                        event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":"+1"}`:                                        event.ClassBadSeq,
		`{"job_id":"a","stage":"a","seq":" 1"}`:                                        event.ClassBadSeq,
		`{"job_id":".","stage":"a","seq":1}`:                                           event.ClassBadEvent,
		`{"job_id":"..","stage":"a","seq":1}`:                                          event.ClassBadEvent,
		`{"job_id":"a","stage":"caf\udce9","seq":1}`:                                   event.ClassBadEvent,
		`{"job_id":"a","stage":"a","status":"\ud83d","seq":1}`:                         event.ClassBadEvent,
		`{"job_id":"a","stage":"a","seq":1,"data":"\"\\\\caf\udce9\""}`:                event.ClassBadEvent,
		`{"job_id":"a","stage":"a","seq":1,"data":"\"` + long(maxDataBytes-1) + `\""}`: pipeline.ClassTooLarge,
		`{"job_id":"a","stage":"a","seq":1,"data":[` + long(1<<20) + `]}`:              event.ClassBadEvent,
		`{"job_id":"a","stage":"a","seq":1,"data":"` + nested(10_000) + `"}`:           event.ClassBadEvent,
		`{"job_id":"a","stage":"token","data":` + nested(1001) + `}`:                   event.ClassBadEvent,
		`[]`:               event.ClassBadEvent,
		`null`:             event.ClassMissingJobID,
		``:                 event.ClassBadEvent,
		"{\"a\":\"\xff\"}": event.ClassBadEvent,
	} {
		_, err := event.DefaultStages().Parse([]byte(payload), origin)
		require.True(t, pipeline.IsPermanent(err), "%.80s", payload)
		require.Equal(t, class, pipeline.Class(err), "%.80s", payload)
	}
}

const maxDataBytes = 64 << 10

func long(n int) string { return strings.Repeat("x", n) }

// nested returns n lists and objects inside each other.
func nested(n int) string {
	return strings.Repeat(`[`, n/2) + strings.Repeat(`{"":`, n-n/2) + `1` + strings.Repeat(`}`, n-n/2) + strings.Repeat(`]`, n/2)
}

func TestParseAccepts(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`{"job_id":"` + long(128) + `","stage":"done","seq":9007199254740991}`,
		`{"job_id":"a","stage":"a","seq":1,"data":"\"` + long(maxDataBytes-2) + `\""}`,
		`{"job_id":"a","stage":"a","seq":1,"data":"","timestamp":"2026-11-23T10:00:00+09:00","traceparent":"nonsense"}`,
		`{"job_id":"a","stage":"a","seq":1,"data":null,"timestamp":1700000000}`,
		`{"job_id":"a","stage":"a","seq":1,"timestamp":"yesterday"}`,
		`{"job_id":"a","stage":"a","seq":1,"timestamp":{},"traceparent":7}`,
		`{"job_id":"...","stage":"\ud83d\ude00","seq":1,"data":"\"\\\\udce9 \\ud83d\\ude00\""}`,
		`{"job_id":"a","stage":"a","seq":1,"data":` + nested(1000) + `}`,
		`{"job_id":"a","stage":"a","seq":1,"data":["` + strings.Repeat(`[{\"`, 2000) + `",` + strings.Repeat(`[],{},`, 2000) + `1]}`,
	} {
		e, err := event.DefaultStages().Parse([]byte(payload), origin)
		require.NoError(t, err, "%.80s", payload)
		require.Empty(t, e.Traceparent)
		text, err := e.JSON()
		require.NoError(t, err)
		_, err = event.Decode(text)
		require.NoError(t, err, "%.80s", payload)
	}
}

// A time is only shown, so a wrong one costs no event.
func TestTimes(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		`1763900000123`: "1763900000.123", `"1763900000123"`: "1763900000.123", `1763900000`: "1763900000", `"yesterday"`: "", `[]`: "", `null`: "",
		`"2026-11-23T10:00:00Z"`: "2026-11-23T10:00:00Z",
	} {
		e, err := event.DefaultStages().Parse([]byte(`{"job_id":"a","stage":"a","seq":1,"timestamp":`+given+`}`), origin)
		require.NoError(t, err, given)
		require.Equal(t, want, e.Timestamp, given)
	}
	_, err := event.DefaultStages().Parse([]byte("Scanning page 3"), origin)
	require.ErrorContains(t, err, "the field message of an entry must have the whole event")
}

// R15: an event of a transient stage has no number, also when its producer wrote one.
func TestTransientEventsHaveNoNumber(t *testing.T) {
	t.Parallel()
	for _, seq := range []string{``, `,"seq":8`, `,"seq":"x"`} {
		e, err := event.DefaultStages().Parse([]byte(`{"job_id":"a","stage":"token"`+seq+`}`), origin)
		require.NoError(t, err)
		require.Zero(t, e.Seq)
	}
	require.True(t, event.DefaultStages().IsTerminal("error"))
	require.False(t, event.DefaultStages().IsTerminal("token"))
}

func TestClassesAreExplained(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range event.Classes() {
		require.NotEmpty(t, c.Cause)
		require.NotEmpty(t, c.Action)
		names = append(names, c.Name)
	}
	require.Equal(t, []string{event.ClassMissingJobID, event.ClassBadSeq, event.ClassBadEvent, event.ClassSeqConflict}, names)
}

// FuzzParse: an event that was parsed is valid, and its JSON has the same content. Each error is
// permanent and has a class.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"job_id":"a","stage":"a","seq":"1","data":"{}"}`, `{"job_id":"a","stage":"token"}`, `{"job_id":"a","stage":"a","seq":1,"data":[" "]}`, `{"job_id":1}`, `[]`,
	} {
		f.Add([]byte(seed))
	}
	stages := event.DefaultStages()
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := stages.Parse(payload, origin)
		if err != nil {
			require.True(t, pipeline.IsPermanent(err))
			require.Contains(t, []string{event.ClassMissingJobID, event.ClassBadSeq, event.ClassBadEvent, pipeline.ClassTooLarge}, pipeline.Class(err))
			return
		}
		require.Equal(t, stages.IsTransient(e.Stage), e.Seq == 0)
		text, err := e.JSON()
		require.NoError(t, err)
		decoded, err := event.Decode(text)
		require.NoError(t, err)
		again, err := decoded.JSON()
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
		parsed, err := stages.Parse(text, origin)
		require.NoError(t, err)
		again, err = parsed.JSON()
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
	})
}

// The table of the README is what producers in other languages check themselves with.
func TestShardsOfTheReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	row := regexp.MustCompile("(?m)^\\| (?:(\\d+) times )?`(\\S+)` \\| (\\d+) \\| (\\d+) \\| (\\d+) \\| (\\d+) \\|$")
	rows := row.FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, 6)
	for _, r := range rows {
		times, _ := strconv.Atoi(r[1])
		job := strings.Repeat(r[2], max(times, 1))
		for i, shards := range []int{4, 8, 1000} {
			require.Equal(t, r[4+i], strconv.Itoa(event.Shard(job, shards)), job)
		}
	}
}
