package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/pipeline"
)

// maxReply bounds an answer of a simulator. A page of 10,000 entries has about 4 MB.
const maxReply = 64 << 20

// ErrNotSimulator means that another server than a simulator answers.
var ErrNotSimulator = errors.New("no simulator")

// ReadJournal yields the entries of q from the simulator at baseURL, in the order of their keys.
// q.Limit is the size of a page. An error is the last element.
func ReadJournal(ctx context.Context, client *http.Client, baseURL string, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for {
			v := url.Values{"after": {q.After}}
			maps.Copy(v, q.Filter)
			if q.Limit != 0 {
				v.Set("limit", strconv.Itoa(q.Limit))
			}
			var p Page
			err := get(ctx, client, baseURL, "/_sim/journal?"+v.Encode(), &p)
			if err == nil && p.Entries == nil { // an empty journal has an empty list
				err = fmt.Errorf("simulator: %w: a page without entries", ErrNotSimulator)
			}
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, e := range p.Entries {
				if !yield(e, nil) {
					return
				}
			}
			if p.Next == "" {
				return
			}
			q.After = p.Next
		}
	}
}

func get(ctx context.Context, client *http.Client, baseURL, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(baseURL, "/")+path, nil)
	if err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("simulator: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return fmt.Errorf("simulator: read %s: %w", path, err)
	}
	switch text := strings.TrimSpace(string(body[:min(len(body), 200)])); {
	case resp.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("simulator: %w: %s answered %s: %s", pipeline.ErrUnavailable, path, resp.Status, text)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("simulator: %w: %s answered %s: %s", ErrNotSimulator, path, resp.Status, text)
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("simulator: %w: %s: %w", ErrNotSimulator, path, err)
	}
	return nil
}
