package console_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once"
)

// mail is a record of an effect.
type mail struct {
	ID    string `json:"id"`
	Email string `json:"email"`
}

// mailer is a plugin with a kind of effects, whose far side says too much.
type mailer struct {
	config once.KindConfig
	mails  *once.Effects[mail]
}

func newMailer(o *once.Plugin, topic string) *mailer {
	p := &mailer{config: once.DefaultKind(topic)}
	p.mails = once.New(o, once.Kind[mail]{
		Name: "mail", Repeat: once.Never,
		Key: func(m mail) (once.Key, error) { return once.Key{Group: "all", ID: m.ID}, nil },
		Call: func(context.Context, once.Attempt[mail]) once.Answer {
			return once.Answer{Class: once.Rejected, Text: `400 of https://mail.example/send?token=hunter2-address: {"api_key": "hunter2-answer", "authorization"`}
		},
	}, &p.config)
	return p
}

func (*mailer) Name() string                          { return "mail" }
func (p *mailer) Settings() any                       { return &p.config }
func (p *mailer) Needs() []string                     { return p.mails.Needs() }
func (p *mailer) Register(r *pipeline.Registry) error { return p.mails.Register(r) }

// planted begins each secret of the tests.
const planted = "hunter2"

// crawl follows all links of all pages, and returns what each address answers, also as text and as JSON.
func (r *rig) crawl() map[string]string {
	r.t.Helper()
	answers := map[string]string{}
	for follow := []string{"/", "/api/v1/", "/api/v1/actions"}; len(follow) > 0; follow = follow[1:] {
		address := follow[0]
		if _, seen := answers[address]; seen {
			continue
		}
		answer, text := r.do(http.MethodGet, address, "")
		require.NotEqual(r.t, http.StatusInternalServerError, answer.StatusCode, address)
		answers[address] = text
		for _, m := range addresses.FindAllStringSubmatch(text, -1) {
			if link := html.UnescapeString(m[1]); strings.HasPrefix(link, "/") {
				follow = append(follow, link)
			}
		}
		if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/html") {
			_, answers["text of "+address] = r.do(http.MethodGet, address, "", "Accept: text/plain; columns=400")
			follow = append(follow, "/api/v1"+strings.Replace(address, "/?", "/home?", 1))
		}
	}
	_, answers["the home page as JSON"] = r.do(http.MethodGet, "/api/v1/home", "")
	return answers
}

// requireMasked fails if a page shows a secret.
func (r *rig) requireMasked() (answers map[string]string) {
	r.t.Helper()
	answers = r.crawl()
	for address, text := range answers {
		at := strings.Index(text, planted)
		require.Negative(r.t, at, "%s shows a secret: %s", address, text[max(0, at-100):max(0, min(len(text), at+100))])
	}
	return answers
}

// Secrets in payloads, headers, errors and answers are on no page, in no form of it, until a person with the role
// asks for them with a reason, which is in the audit.
func TestNoPageShowsASecret(t *testing.T) {
	t.Parallel()
	p := startProcess(t, func(k *kafka.Plugin, dead *deadletter.Plugin) []pipeline.Plugin {
		o := once.NewPlugin(k, dead)
		return []pipeline.Plugin{o, newMailer(o, "mails-once")}
	}, map[string]string{"plugins.once.ledger.dsn": "sqlite:{dir}/once.db"})
	publish := func(topic, id, payload string, headers message.Metadata) {
		m := message.NewMessage(id, message.Payload(payload))
		m.Metadata = headers
		require.NoError(t, p.kafka.Sink(topic).Publish(t.Context(), m))
	}
	headers := func() message.Metadata {
		return message.Metadata{
			"Authorization": "Bearer hunter2-header", "x-context": `{"phone": "hunter2-context"}`, "x-shown": "a header",
			"said": `status 400: {"password": "hunter2-error", "amount": 5}; sent "{\"token\":\"hunter2-quoted\"}"`,
		}
	}
	publish("orders", "one", `{"password": "hunter2-payload", "list": [{"accessToken": {"value": "hunter2-nested"}}], "text": "{\"email\": \"hunter2-inner\"}", "name": "a name", "n": 1152921504606846977}`, headers())
	publish("orders", "two", "hunter2-plain and no JSON", headers())
	publish("mails-once", "three", `{"id": "7", "email": "hunter2-record", "note": "a note"}`, headers())
	require.Eventually(t, func() bool { // both, the first letter of the process, and the effect
		return strings.Contains(string(p.panels("dead-letters")["groups"].Value), `"waiting_for_a_person": 3`) && strings.Contains(p.get("/effects"), ">failed<")
	}, 2*time.Minute, 50*time.Millisecond)

	answers := p.requireMasked()
	for _, place := range []string{"/effects/effect?", "/dead-letters/group?", "/dead-letters/letter?id=", "/dead-letters/compare?id=", "/actions/deadletter/replay?", "/audit", "/audit.csv", "/topics", "/streams", "/settings", "/doctor"} {
		found := false
		for address := range answers {
			found = found || strings.HasPrefix(address, place)
		}
		require.True(t, found, "%s was not read, so nothing was proved of it", place)
	}
	id, plainText := "", false
	for address, text := range answers {
		_, letter, found := strings.Cut(address, "letter?id=")
		if !found || !strings.HasPrefix(address, "/dead-letters") || !strings.Contains(text, "x-shown") {
			continue
		}
		require.Contains(t, text, "Authorization: [masked]")
		require.Contains(t, text, "x-context: {&#34;phone&#34;: &#34;[masked]&#34;}")
		require.Contains(t, text, "x-shown: a header")
		require.Contains(t, text, `<button name="reveal"`)
		if strings.Contains(text, "1152921504606846977") { // a number keeps its digits
			id = letter
		} else {
			plainText = true
			require.Contains(t, text, "25 bytes, which are hidden")
		}
	}
	require.NotEmpty(t, id)
	pair := ""
	for address := range answers {
		if strings.HasPrefix(address, "/dead-letters/compare?") && strings.Contains(address, id) {
			pair = address
		}
	}
	require.True(t, plainText, "the letter that is no JSON")
	address := "/dead-letters/letter?id=" + id

	answer, text := p.post(address, url.Values{"panel": {"letter"}, "reveal": {"yes"}, "why": {" "}})
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
	require.Contains(t, text, "why is required, for the audit")
	require.NotContains(t, text, planted)
	answer, text = p.post(address, url.Values{"panel": {"letter"}, "reveal": {"yes"}, "why": {"ticket 7"}})
	require.Equal(t, http.StatusOK, answer.StatusCode, text)
	for _, secret := range []string{"payload", "nested", "inner", "header", "context", "error", "quoted"} {
		require.Contains(t, text, planted+"-"+secret)
	}
	require.NotContains(t, text, "<script", "a page that reads itself again would mask them")
	answer, text = p.post("/api/v1"+address, url.Values{"panel": {"letter"}, "reveal": {"yes"}, "why": {"ticket 8"}})
	require.Equal(t, http.StatusOK, answer.StatusCode, text)
	require.Contains(t, text, planted+"-payload")
	for _, face := range []string{"", "/api/v1"} {
		answer, text = p.post(face+pair, url.Values{"panel": {"letters"}, "reveal": {"yes"}, "why": {"two of them"}})
		require.Equal(t, http.StatusOK, answer.StatusCode, text)
		for _, secret := range []string{"payload", "plain and no JSON", "header", "context"} {
			require.Contains(t, text, planted+"-"+secret)
		}
	}
	effect := "/effects/effect?group=all&id=7&kind=mail"
	answer, text = p.post(effect, url.Values{"panel": {"effect"}, "reveal": {"yes"}, "why": {"ticket 9"}})
	require.Equal(t, http.StatusOK, answer.StatusCode, text)
	for _, secret := range []string{"record", "answer", "address", "header"} {
		require.Contains(t, text, planted+"-"+secret)
	}
	for _, absent := range []string{"/dead-letters/letter?id=absent", "/effects/effect?group=all&id=8&kind=mail"} {
		panel := map[bool]string{true: "letter", false: "effect"}[strings.HasPrefix(absent, "/dead")]
		answer, text = p.post(absent, url.Values{"panel": {panel}, "reveal": {"yes"}, "why": {"ticket 9"}})
		require.Equal(t, http.StatusNotFound, answer.StatusCode, text)
	}

	require.Eventually(t, func() bool {
		return strings.Contains(p.get("/audit"), "ticket 9") && strings.Contains(p.get("/audit"), "ticket 8")
	}, 2*time.Minute, 50*time.Millisecond)
	seen, pairs := map[string]string{}, map[string]int{}
	for _, log := range []string{"dead-letters", "effects"} {
		for _, row := range rowsOf(t, p.panels("audit")[log].Value) {
			if row["why"] == "two of them" {
				pairs[fmt.Sprint(row["subject"])]++
				continue
			}
			seen[fmt.Sprint(row["why"])] = fmt.Sprint(row["action"], " ", row["subject"], " ", row["from"])
		}
	}
	require.Equal(t, map[string]string{"ticket 7": "reveal " + id + " console", "ticket 8": "reveal " + id + " API", "ticket 9": "reveal mail/all/7 console"}, seen)
	require.Len(t, pairs, 2)
	require.Equal(t, 2, pairs[id], "once for each look, as for the other one")
	p.requireMasked()
	require.NotContains(t, p.log.String(), planted+"-payload")
	require.Contains(t, p.log.String(), "masked values were shown")
}
