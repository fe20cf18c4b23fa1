package effects_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Every mistake is reported at once, with its line.
func TestMistakesOfAKindOfSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settings, want string }{
		"an empty kind": {
			"invoice:\n", `
:4: plugins.effects.kinds.invoice: must be a section with the settings of the kind
`,
		},
		"nothing is said": {
			"invoice: {repeat: }\n", `
:4: plugins.effects.kinds.invoice.repeat: must be by_key, by_lookup, never or always, because it decides what follows an unclear answer, got ""
:4: plugins.effects.kinds.invoice.key: must be a path such as order.id, in which each part has a character, got ""
:4: plugins.effects.kinds.invoice.group: must be a path such as order.id, in which each part has a character, got ""
:4: plugins.effects.kinds.invoice.answers.receipt: must be set, or answers.key, or answers.statuses must have a 2xx that is done: otherwise nothing proves that an effect was done
:4: plugins.effects.kinds.invoice.request.path: the path "" must begin with one slash and have no fragment
:4: plugins.effects.kinds.invoice.api.url: must be set
`,
		},
		"a setting that is unknown": {
			"invoice:\n  <<\n  repaet: never\n  answers: {receipt: id}\n", `
:4: plugins.effects.kinds.invoice.repeat: must be by_key, by_lookup, never or always, because it decides what follows an unclear answer, got ""
:9: plugins.effects.kinds.invoice.repaet: unknown setting; did you mean "repeat"?
`,
		},
		"a name": {
			"In_voice:\n  <<\n  repeat: never\n", `
:4: plugins.effects.kinds.In_voice: the name of a kind must be a letter, and up to 30 letters, digits or -, all lower-case, got "In_voice"
:4: plugins.effects.kinds.In_voice.answers.receipt: must be set, or answers.key, or answers.statuses must have a 2xx that is done: otherwise nothing proves that an effect was done
`,
		},
		"by_key without its header and its time": {
			"invoice:\n  <<\n  repeat: by_key\n  answers: {receipt: id}\n", `
:4: plugins.effects.kinds.invoice.effects.key_ttl: must be the time for which the API surely knows an idempotency key, less a lease: repeat is by_key
:7: plugins.effects.kinds.invoice.request.idempotency_header: must be the header in which the API takes an idempotency key, such as Idempotency-Key: repeat is by_key
`,
		},
		"by_lookup without a lookup": {
			"invoice:\n  <<\n  repeat: by_lookup\n  answers: {receipt: id}\n", `
:4: plugins.effects.kinds.invoice.effects.under_way: must be the longest time that a request may be under way after it was sent: repeat is by_lookup
:4: plugins.effects.kinds.invoice.lookup: must be set: repeat is by_lookup, so only a lookup can tell what became of an effect
`,
		},
		"a lookup that can't say anything": {
			"invoice:\n  <<\n  repeat: by_lookup\n  effects: {under_way: 1m}\n  answers: {statuses: {200: done}}\n  lookup: {path: \"x/{number}\", statuses: {200: failed, 5xx: done}}\n", `
:12: plugins.effects.kinds.invoice.lookup.statuses.200: must be done, not_done or unknown, got "failed"
:12: plugins.effects.kinds.invoice.lookup.statuses.5xx: 5xx can't mean that an effect was done: it is a redirect or an error of the server
:12: plugins.effects.kinds.invoice.lookup.not_found: must have a code, or lookup.statuses a status that is not_done: otherwise no lookup ever says that an effect was not done
:12: plugins.effects.kinds.invoice.lookup.path: the path "x/{number}" must begin with one slash and have no fragment
`,
		},
		"a lookup that never says done": {
			"invoice:\n  <<\n  repeat: by_lookup\n  effects: {under_way: 1m}\n  answers: {statuses: {200: done}}\n  lookup: {path: \"/x/{id}\", not_found: [none]}\n", `
:12: plugins.effects.kinds.invoice.lookup.statuses: must have a status that is done, or answers.receipt must be set: otherwise no lookup ever says that an effect was done
`,
		},
		"a lookup that the API has not": {
			"invoice:\n  <<\n  repeat: never\n  answers: {receipt: id}\n  lookup: {path: \"/x/{id}\", not_found: [none]}\n", `
:11: plugins.effects.kinds.invoice.lookup: must be absent with repeat: never, which says that the API has none
`,
		},
		"paths": {
			"invoice:\n  repeat: never\n  key: \"\"\n  group: .id\n  not_before: due.\n  sum: a..b\n  request: {path: \"/x/{number}\", body: a..b}\n  api: {url: \"http://127.0.0.1\"}\n  answers: {receipt: id., code: \"\"}\n", `
:6: plugins.effects.kinds.invoice.key: must be a path such as order.id, in which each part has a character, got ""
:7: plugins.effects.kinds.invoice.group: must be a path such as order.id, in which each part has a character, got ".id"
:8: plugins.effects.kinds.invoice.not_before: must be a path such as order.id, in which each part has a character, got "due."
:9: plugins.effects.kinds.invoice.sum: must be a path such as order.id, in which each part has a character, got "a..b"
:10: plugins.effects.kinds.invoice.request.body: must be a path such as order.id, in which each part has a character, got "a..b"
:10: plugins.effects.kinds.invoice.request.path: the path "/x/{number}" has a brace, and no placeholder but {key}, {group} and {id} is known
:12: plugins.effects.kinds.invoice.answers.receipt: must be a path such as order.id, in which each part has a character, got "id."
:12: plugins.effects.kinds.invoice.answers.code: must be a path such as order.id, in which each part has a character, got ""
`,
		},
		"a request": {
			"invoice:\n  key: id\n  group: to\n  repeat: never\n  answers: {receipt: id}\n  request: {path: /x, method: GET, idempotency_header: a b, headers: {Host: x, Authorization: x}}\n  api: {url: \"http://api.example\", token: abc, call_timeout: 5s}\n", `
:9: plugins.effects.kinds.invoice.request.idempotency_header: must be the name of a header, got "a b"
:9: plugins.effects.kinds.invoice.request.method: must be POST, PUT or PATCH, got "GET"
:9: plugins.effects.kinds.invoice.request.headers: must not have Host, which has another value
:9: plugins.effects.kinds.invoice.request.headers: must not have Authorization with api.token or api.oauth2, whose token is sent in it
:10: plugins.effects.kinds.invoice.api.url: must be https:// because there is a token: over http:// it crosses the network in plain text; or set allow_plaintext_credentials: true in this section
:10: plugins.effects.kinds.invoice.api.call_timeout: must be at most effects.call_timeout (3s), which ends a call anyway, got 5s
:10: plugins.effects.kinds.invoice.api.url: must be https:// because of request.headers, which are taken for credentials: over http:// they cross the network in plain text; or set api.allow_plaintext_credentials: true
`,
		},
		"a header in place of a fetched token": {
			"invoice:\n  key: id\n  group: to\n  repeat: never\n  answers: {receipt: id}\n  request: {path: /x, headers: {authorization: x}}\n  api: {url: \"https://api.example\", oauth2: {token_url: \"https://sign.example/token\", client_id: a, client_secret: abc}}\n", `
:9: plugins.effects.kinds.invoice.request.headers: must not have authorization with api.token or api.oauth2, whose token is sent in it
`,
		},
		"answers": {
			"invoice:\n  <<\n  repeat: never\n  answers: {statuses: {2xx: don, 6xx: done, 401: failed, 404: not_done}}\n", `
:10: plugins.effects.kinds.invoice.answers.statuses.2xx: must be done, failed, retry or unknown, got "don"
:10: plugins.effects.kinds.invoice.answers.statuses.401: a 401 is about the credential, so it must not fail an effect
:10: plugins.effects.kinds.invoice.answers.statuses.404: must be done, failed, retry or unknown, got "not_done"
:10: plugins.effects.kinds.invoice.answers.statuses.6xx: must be a status such as 404 or a class such as 4xx, from 2xx to 5xx, got "6xx"
:10: plugins.effects.kinds.invoice.answers.receipt: must be set, or answers.key, or answers.statuses must have a 2xx that is done: otherwise nothing proves that an effect was done
`,
		},
		"a URL without a host, and limits": {
			"invoice:\n  repeat: never\n  key: id\n  group: to\n  request: {path: /x}\n  answers: {receipt: id}\n  api: {url: \"https:///x\", concurrency: 0}\n  effects: {concurrency: 0, max_retries: -1, retry: {first: -1s}}\n", `
:10: plugins.effects.kinds.invoice.api.url: must be http:// or https:// with a host
:10: plugins.effects.kinds.invoice.api.concurrency: must be > 0, got 0
:11: plugins.effects.kinds.invoice.effects.concurrency: must be >= 1, got 0
:11: plugins.effects.kinds.invoice.effects.max_retries: must be >= 0, got -1
:11: plugins.effects.kinds.invoice.effects.retry.first: must be >= 0, got -1s
`,
		},
		"streams and names": {
			"invoice:\n  <<\n  repeat: never\n  answers: {receipt: id}\n  names: {stream: SHOP, active_set: \"{SHOP}\"}\n  effects: {streams: {max_active: 0, entries: all, max_len: 0, tiers: []}}\n", `
:11: plugins.effects.kinds.invoice.names.stream: must be letters, digits, -, _ and . with single colons between them and one at the end, such as SHOP-STREAM:, because a group is appended, got "SHOP"
:11: plugins.effects.kinds.invoice.names.active_set: must be letters, digits, -, _ and . with single colons between them, got "{SHOP}"
:12: plugins.effects.kinds.invoice.effects.streams.tiers: unknown setting
:12: plugins.effects.kinds.invoice.effects.streams.max_len: must be > 0, got 0
:12: plugins.effects.kinds.invoice.effects.streams.max_active: must be >= 1, got 0
:12: plugins.effects.kinds.invoice.effects.streams.entries: must be rows or records, got "all"
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := strings.ReplaceAll(c.settings, "<<", "key: id\n  group: to\n  request: {path: /x}\n  api: {url: \"http://127.0.0.1\"}")
			code, printed := newWorld(t, sqldbtest.File(t)).validate(t, "plugins:\n  effects:\n    kinds:\n"+indent(settings))
			require.Equal(t, app.ExitUsage, code)
			require.Equal(t, "mill: the settings have mistakes:"+strings.ReplaceAll(c.want, "\n:", "\n  mill.yaml:"), printed)
		})
	}
}

func indent(text string) string {
	return "      " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n      ") + "\n"
}
