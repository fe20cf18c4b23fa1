package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/pipeline"
)

// maxReply bounds what a reader takes from a simulator: a page of 10,000 entries is about 4 MB.
const maxReply = 64 << 20

// ErrNotSimulator says that what answers is not the simulated Money API: another has no book to read.
var ErrNotSimulator = errors.New("no simulated Money API")

// ReadBook yields all entries that q chooses from the simulator at baseURL, page by page, in the
// order of their keys. q.Limit is the size of a page. After an error it yields no more. A nil
// client is http.DefaultClient.
func ReadBook(ctx context.Context, client *http.Client, baseURL string, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for {
			v := url.Values{}
			if q.Type != "" {
				v.Set("type", q.Type)
			}
			if q.PromotionID != 0 {
				v.Set("promotion", strconv.FormatInt(q.PromotionID, 10))
			}
			if q.After != "" {
				v.Set("after", q.After)
			}
			if q.Limit != 0 {
				v.Set("limit", strconv.Itoa(q.Limit))
			}
			var p Page
			err := get(ctx, client, baseURL, "/_sim/book?"+v.Encode(), &p)
			if err == nil && p.Entries == nil { // of an empty book they are empty, and not absent
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
	if client == nil {
		client = http.DefaultClient
	}
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
	switch says := strings.TrimSpace(string(body[:min(len(body), 200)])); {
	case resp.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("simulator: %w: %s answered %s: %s", pipeline.ErrUnavailable, path, resp.Status, says)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("simulator: %w: %s answered %s: %s", ErrNotSimulator, path, resp.Status, says)
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("simulator: %w: %s: %w", ErrNotSimulator, path, err)
	}
	return nil
}
