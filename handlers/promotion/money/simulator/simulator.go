package simulator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	far "github.com/millrace-io/millrace/plugins/once/simulator"
)

// What every simulated far side has.
type (
	// Config is the settings of a Server.
	Config = far.Config
	// Faults are the failures of the API.
	Faults = far.Faults
)

// Server is a simulated Money API.
type Server struct{ *far.Server }

// New returns a server that is not started.
func New(cfg Config) (*Server, error) {
	s, err := far.New(api(), cfg)
	if err != nil {
		return nil, err
	}
	return &Server{s}, nil
}

const lookupPath = "/v1/charges/"

// keyPattern is the pattern of IdempotencyKey in openapi.yaml.
const keyPattern = `^[A-Z][A-Z0-9_]*:[1-9][0-9]*:[1-9][0-9]*$`

func api() far.API {
	key := regexp.MustCompile(keyPattern)
	checks := map[string]far.Check{}
	for _, t := range promotiontype.All() {
		checks[t.Operation.Path] = func(body []byte) (far.Order, error) {
			p, err := t.Decode(body)
			if err != nil {
				return far.Order{}, fmt.Errorf("the body has not the form of %s: %w", t.Operation.Name, err)
			}
			return far.Order{Subject: subject(t.Name, p.Promotion) + strconv.FormatInt(p.Target, 10), Sum: t.MinorUnits(p.Value)}, nil
		}
	}
	return far.API{
		Operation: func(r *http.Request) (string, far.Check) {
			if r.Method != http.MethodPost {
				return "", nil
			}
			return r.Header.Get("Idempotency-Key"), checks[r.URL.Path]
		},
		Lookup: func(r *http.Request) (string, bool) {
			key, ok := strings.CutPrefix(r.URL.Path, lookupPath)
			return key, ok && r.Method == http.MethodGet
		},
		ValidKey: func(text string) bool { return len(text) <= 128 && key.MatchString(text) },
		KeyForm:  "the key must be <TYPE>:<promotionId>:<targetId>",
		Done: func(receipt, key string) []byte {
			return fmt.Appendf(nil, `{"transactionKey":%q,"idempotencyKey":%q}`, receipt, key)
		},
		Missing:  far.Refusal{Code: "charge_not_found", Message: "no charge with this key"},
		Rejected: far.Refusal{Code: "limit_exceeded", Message: "the target can't be paid"},
		Absent:   far.Refusal{Code: "member_not_found", Message: "no such member"},
		Blocked:  far.Refusal{Code: "member_blocked", Message: "the member is blocked"},
		Sums:     true,
		Filter:   filter,
	}
}

// subject is the beginning of the subjects of a promotion.
func subject(name string, promotion int64) string { return fmt.Sprintf("%s:%d:", name, promotion) }

// filter selects by the type and the promotion of the bodies.
func filter(v url.Values) (func(subject string) bool, error) {
	name, promotion := strings.ToUpper(v.Get("type")), v.Get("promotion")
	if _, known := promotiontype.ByName(name); name != "" && !known {
		return nil, fmt.Errorf("type must be one of %s, got %q", strings.Join(promotiontype.Names(), ", "), v.Get("type"))
	}
	if promotion != "" {
		n, err := strconv.ParseInt(promotion, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("promotion must be a positive number, got %q", promotion)
		}
		promotion = strconv.FormatInt(n, 10)
	}
	return func(subject string) bool {
		ofType, rest, _ := strings.Cut(subject, ":")
		return (name == "" || ofType == name) && (promotion == "" || strings.HasPrefix(rest, promotion+":"))
	}, nil
}

// Query selects charges of the journal.
type Query struct {
	Type        string // empty: all types
	PromotionID int64  // 0: all promotions
	After       string // only keys that sort after this one
	Limit       int    // entries of a page; 0: 1000; at most 10000
}

func (q Query) far() far.Query {
	v := url.Values{"type": {q.Type}}
	if q.PromotionID != 0 {
		v.Set("promotion", strconv.FormatInt(q.PromotionID, 10))
	}
	return far.Query{Filter: v, After: q.After, Limit: q.Limit}
}

// Entry is a key that was charged, with what the latest charge says.
type Entry struct {
	far.Entry
	Type               string
	PromotionID        int64
	PromotionSummaryID int64
	TargetID           int64
	Value              string // the amount, or the voucher
}

func entryOf(e far.Entry) (Entry, error) {
	name, _, _ := strings.Cut(e.Subject, ":")
	t, known := promotiontype.ByName(name)
	if !known {
		return Entry{}, fmt.Errorf("simulator: %s is of an unknown type", e.Key)
	}
	p, err := t.Decode([]byte(e.Body))
	if err != nil {
		return Entry{}, fmt.Errorf("simulator: %s: %w", e.Key, err)
	}
	return Entry{e, t.Name, p.Promotion, p.Summary, p.Target, p.Value}, nil
}

// Page is a part of the journal, in the order of its keys.
type Page struct {
	Entries []Entry
	Next    string // After of the next page; empty: the last page
}

// Page returns a part of the journal; empty before Start.
func (s *Server) Page(q Query) (Page, error) {
	of, err := s.Server.Page(q.far())
	p := Page{Next: of.Next}
	for _, one := range of.Entries {
		e, wrong := entryOf(one)
		err = errors.Join(err, wrong)
		p.Entries = append(p.Entries, e)
	}
	return p, err
}

// ReadJournal yields the charges of q from the simulator at baseURL, in the order of their keys.
// q.Limit is the size of a page. An error is the last element.
func ReadJournal(ctx context.Context, client *http.Client, baseURL string, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for one, err := range far.ReadJournal(ctx, client, baseURL, q.far()) {
			var e Entry
			if err == nil {
				e, err = entryOf(one)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Command returns `money-simulator`: a simulated Money API until it is interrupted.
func Command() *cobra.Command {
	return far.Command(&cobra.Command{
		Use:   "money-simulator",
		Short: "Run a simulated Money API with a journal of its charges",
		Long: `Run a simulated Money API until it is interrupted.

It implements the OpenAPI file of the promotion plugin. The flags set its faults;
PUT /_sim/faults changes them while it runs, and GET /_sim/faults shows them. The journal records
each charge: GET /_sim/journal?type=&promotion=&after=&limit= and GET /_sim/summary.`,
		Example: `  millrace money-simulator
  millrace money-simulator --fail-rate 0.2 --timeout-rate 0.1`,
	}, "money api", func() (far.API, error) { return api(), nil })
}
