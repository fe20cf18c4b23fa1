package console

import (
	"context"
	"encoding/csv"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	exportChunk = 1000
	exportTime  = 10 * time.Minute
	exportStall = 30 * time.Second // in which a client must have taken a chunk
	maxExports  = 2                // each reads all of the audit, and a person has one
)

// exportAudit answers with all changes that the filter selects, as CSV, place by place. A file that can't be
// completed ends the connection, so that nobody takes it for all of the audit.
func (s *server) exportAudit(w http.ResponseWriter, r *http.Request) {
	values := operate.Input(r.URL.Query())
	places := s.auditLogs()
	if name := values.Text("log"); name != "" {
		log, found := findLog(places, name)
		if !found {
			http.Error(w, fmt.Sprintf("No audit has the name %q: the panels of the page Audit have all names.", plain(name)), http.StatusNotFound)
			return
		}
		places = []operate.AuditLog{log}
	}
	release, taken := s.loads.take([]share{{"export of " + personOf(r).Name, 1}, {"exports", maxExports}})
	if !taken {
		http.Error(w, "Another download of the audit runs: try again when it has ended.", http.StatusTooManyRequests)
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), exportTime)
	defer cancel()
	f := filterOf(values)
	first := make([]operate.AuditPage, len(places))
	for i, log := range places { // before the first byte, while the answer can still say what is wrong
		var err error
		if first[i], err = s.readChanges(ctx, log, f); err != nil {
			status := statusOf(err)
			if status == http.StatusInternalServerError {
				status = http.StatusServiceUnavailable
			}
			http.Error(w, fmt.Sprintf("The audit %s can't be read: %s. With the parameter log=NAME another one can.", log.Name, plain(s.masks.text(err.Error()))), status)
			return
		}
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8; header=present")
	w.Header().Set("Content-Disposition", `attachment; filename="audit.csv"`)
	if err := s.writeChanges(ctx, w, places, first, f); err != nil {
		s.plugin.log.WarnContext(ctx, "a download of the audit was cut off", logs.Err(err))
		panic(http.ErrAbortHandler)
	}
}

// readChanges reads a part of a log. One that hangs is not waited for.
func (s *server) readChanges(ctx context.Context, log operate.AuditLog, f operate.AuditFilter) (operate.AuditPage, error) {
	key := "export " + addressOf("", log.Name, f)
	r, late := s.loads.get(ctx, key, s.export, func(ctx context.Context) (any, error) { return log.Recent(ctx, f, exportChunk) })
	if late {
		return operate.AuditPage{}, fmt.Errorf("no answer within %s", s.export.wait)
	}
	page, _ := r.value.(operate.AuditPage)
	return page, r.err
}

func (s *server) writeChanges(ctx context.Context, w http.ResponseWriter, places []operate.AuditLog, first []operate.AuditPage, f operate.AuditFilter) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"log", "id", "at", "action", "subject", "who", "from", "role", "why", "outcome", "detail"}) // Flush has the error
	for i, log := range places {
		page, from := first[i], f
		for {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.stall)) // a writer without one has no limit
			for _, c := range page.Changes {
				by := operate.AuthorOf(c.Who)
				_ = out.Write(s.cells(log.Name, c.ID, c.At.UTC().Format(time.RFC3339Nano), c.Action, c.Subject, by.Name, by.Face, string(by.Role), c.Why, c.Outcome, c.Detail))
			}
			out.Flush()
			err := out.Error()
			if err != nil {
				return err
			}
			if page.Next == "" {
				break
			}
			from.Before = page.Next
			if page, err = s.readChanges(ctx, log, from); err != nil {
				return fmt.Errorf("audit %s: %w", log.Name, err)
			}
		}
	}
	out.Flush()
	return out.Error()
}

// cells hides what the page hides, and keeps a spreadsheet from taking a text for a formula, which begins with
// one of these characters.
func (s *server) cells(cells ...string) []string {
	for i, text := range cells {
		if text = plain(s.masks.text(text)); text != "" && strings.ContainsRune("=+-@", rune(text[0])) {
			text = "'" + text
		}
		cells[i] = text
	}
	return cells
}
