package httpclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	tokenTimeout = 10 * time.Second // of a fetch
	tokenAgain   = time.Second      // between a fetch that failed and the next one
	renewAgain   = 10 * time.Second // the same while the last token is still valid
	tokenWarning = time.Minute      // between two warnings

	// The last tenth of a token's life, at most 30 seconds, belongs to requests under way. In the last
	// fifth a new one is fetched.
	endPart, maxEnd, renewPart = 10, 30 * time.Second, 5
)

// tokens fetches the tokens of an API, and keeps one while it is valid. The first request that needs a new one
// starts its fetch, which goes on when that request ends, because the next one would only begin it again. Requests
// wait for it while there is no valid token. It is safe for concurrent use.
type tokens struct {
	settings OAuth2
	secret   *setting.Live
	client   *http.Client
	name     string
	log      *slog.Logger
	warn     *logs.Throttle
	now      func() time.Time

	mu       sync.Mutex    // guards what follows
	header   string        // with the token; empty: none
	issued   time.Time     // when it was asked for
	life     time.Duration // zero: until it is refused
	fetching chan struct{} // closed at the end of the fetch under way; nil: none
	failed   time.Time     // the end of the last fetch, if it failed
	err      error         // of that fetch
}

func newTokens(o OAuth2, transport func(context.Context) *http.Transport, name string, log *slog.Logger) *tokens {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &tokens{
		settings: o, secret: o.ClientSecret.Live(name+".oauth2.client_secret", log, validSecret), name: name, log: log,
		warn: logs.NewThrottle(tokenWarning), now: time.Now,
		client: &http.Client{CheckRedirect: NoRedirect, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			return transport(r.Context()).RoundTrip(r)
		})},
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// get returns the header of a request, with a token that is valid for long enough.
func (t *tokens) get(ctx context.Context) (string, error) {
	for {
		t.mu.Lock()
		now := t.now()
		valid, renew := t.state(now)
		again := tokenAgain
		if valid {
			again = renewAgain
		}
		recent := t.err != nil && now.Sub(t.failed) < again
		if (!valid || renew) && !recent && t.fetching == nil {
			t.fetching = make(chan struct{})
			go t.fetch(valid)
		}
		header, err, fetching := t.header, t.err, t.fetching
		t.mu.Unlock()
		switch {
		case valid:
			return header, nil
		case recent:
			return "", err
		}
		select {
		case <-fetching:
		case <-ctx.Done():
			return "", fmt.Errorf("no token yet: %w", ctx.Err())
		}
	}
}

// state reports whether the token can be sent, and whether it is time for a new one. The caller must
// hold t.mu.
func (t *tokens) state(now time.Time) (valid, renew bool) {
	if t.header == "" || t.life == 0 {
		return t.header != "", false
	}
	left := t.life - now.Sub(t.issued)
	return left > min(maxEnd, t.life/endPart), left < t.life/renewPart
}

// fetch fetches a token. No trace of a request is continued: it is about the API.
func (t *tokens) fetch(valid bool) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), oauth2.HTTPClient, t.client), tokenTimeout)
	defer cancel()
	config := clientcredentials.Config{
		ClientID: t.settings.ClientID, ClientSecret: t.secret.Value(ctx), TokenURL: t.settings.TokenURL, Scopes: t.settings.Scopes,
		EndpointParams: url.Values{},
	}
	if t.settings.Audience != "" {
		config.EndpointParams.Set("audience", t.settings.Audience)
	}
	if config.ClientSecret == "" { // the certificate proves who the client is
		config.AuthStyle = oauth2.AuthStyleInParams
	}
	began := t.now()
	token, err := config.Token(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.fetching)
	t.fetching = nil
	if err != nil {
		t.failed, t.err = t.now(), tokenError(err)
		t.warn.Warn(t.log, "no token fetched", slog.String("of", t.name), logs.Err(t.err), slog.Bool("last_one_valid", valid))
		return
	}
	t.header, t.issued, t.life, t.err = token.Type()+" "+token.AccessToken, began, 0, nil
	if !token.Expiry.IsZero() {
		t.life = max(1, time.Until(token.Expiry))
	}
}

// refuse is called when the API has refused a token. It reports whether there may be another one: a token
// that was fetched a moment ago is refused for another reason, and is not fetched again at once.
func (t *tokens) refuse(header string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.header == header {
		if t.now().Sub(t.issued) < renewAgain {
			return false
		}
		t.header = ""
	}
	return true
}

// tokenError keeps out of an error what may be secret: the address with its query, and the answer.
func tokenError(err error) error {
	if refused, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		code := ""
		if refused.ErrorCode != "" {
			code = fmt.Sprintf(" (%.50q)", refused.ErrorCode)
		}
		status := refused.Response.StatusCode
		if status >= http.StatusInternalServerError {
			return fmt.Errorf("the token endpoint fails with status %d%s", status, code)
		}
		return fmt.Errorf("the token endpoint refuses us with status %d%s: check client_id, client_secret and scopes", status, code)
	}
	return fmt.Errorf("the token endpoint: %w", WithoutURL(err))
}

// validSecret returns why a secret can't be that of a client.
func validSecret(secret string) error {
	if strings.ContainsAny(secret, "\r\n\x00") {
		return errors.New("must have one line")
	}
	return nil
}
