package rules_test

import "regexp"

// wording is a word that has no place in the repository's texts, and its plain replacement.
type wording struct {
	bad    *regexp.Regexp
	except *regexp.Regexp // when it matches the words with their neighbours, they are fine
	use    string
}

// wordings returns the table of words. A word is in it only when it is wrong almost everywhere.
func wordings() []wording {
	var list []wording
	add := func(bad, use string, except ...string) {
		w := wording{bad: regexp.MustCompile(`(?i)\b(?:` + bad + `)\b`), use: use}
		if len(except) > 0 {
			w.except = regexp.MustCompile(`(?i)` + except[0])
		}
		list = append(list, w)
	}
	// Programs are not persons.
	add(`nobody|no one|no-one`, "no + the component: no instance, no reader")
	add(`somebody|someone|anybody|anyone|everybody|everyone`, "name the component or the role")
	add(`whoever|whom`, "name the component or the role")
	add(`wants`, "needs, requires, expects")
	add(`tells?|telling`, "reports, shows, states")
	add(`told`, "reported, notified, informed")
	add(`asks?|asked|asking|asker`, "queries, requests, looks up, reads")
	add(`knows?|knew`, "has, contains, recognises, detects")
	add(`dies|die|died|dying`, "exits, crashes, is killed, ends")
	add(`believes?|believed`, "uses, trusts, caches")
	add(`company`, "a batch: waits to be batched")
	// Archaic and literary words.
	add(`anew`, "again")
	add(`for ever`, "indefinitely, forever")
	add(`mend|mends|mended|mending`, "fix, fixed")
	add(`(?:held|hold|holds|holding) up`, "delay, delays, delayed")
	add(`beside`, "next to, in addition to")
	add(`as (?:it|they) (?:came|comes?|stood|stands?)`, "unchanged")
	add(`(?:is|are|was|were|what is) away`, "unavailable, not connected")
	add(`(?:given|gives?|gave|giving) up`, "abandoned, failed, stops retrying")
	add(`begun`, "started")
	add(`hence|thus|thereby|whence|whilst|amongst|lest|herein|thereof|therein`, "so, therefore, while, among: a plain word")
	add(`so many|so much`, "name the number or the limit", `so (many|much) (that|as)`)
	add(`strangers?`, "name the component")
	// One term per idea.
	add(`in hand`, "in flight")
	add(`crews?`, "worker pool")
	add(`lanes?`, "batcher", `^lane$|hub, lane:`) // the label of millrace_sse_events_total
	add(`keepers?`, "control loop")
	add(`tend|tends|tended|tending`, "reconcile", `tends? to\b`)
	add(`judges?|judged|judging`, "evaluate, decide")
	add(`books?|booked|booking`, "in-flight table, write set, journal, or record (verb)", `the books (?:don't )?balance`)
	add(`letters?`, "dead letter",
		`dead[- ]?letters?|(lower|upper)[- ]?case letters?|capital letters?|small letters?|(one|single|first|[0-9]+)[- ]letters?|(second|third|other) letter (of|is|in)|letters?(,| and| or) (digits?|numbers?|underscores?)`)
	add(`lookers?`, "preview, status")
	add(`ghosts?`, "deleted pending entries")
	add(`ripen|ripens|ripened|ripe`, "become due, due")
	add(`recalls?|recalled|recalling`, "revoke, revoked")
	add(`withdraws?|withdrew|withdrawn`, "release, remove, revoke")
	add(`rescues?|rescued|rescuing`, "claim from a dead consumer")
	add(`forgets?|forgotten|forgot|forgetting`, "remove, drop, delete", `do not forget|don't forget`)
	add(`(?:give|gives|given|gave|giving) (?:\w+ )?back`, "release, released, return")
	add(`(?:put|puts|putting) (?:\w+ )?back`, "reactivate, restore, return")
	add(`take(?:s|n)? out|took out`, "decommission, remove")
	add(`hints?|hinted`, "queue location", `log hints?|hints? for siz`)
	add(`own faults?`, "misconfigured")
	add(`killpoints?`, "failpoint")
	add(`moneysim|moneyapi`, "money simulator")
	add(`homes?`, "environment", `home (directory|page|folder)`)
	add(`strateg(?:y|ies)`, "promotion type", `(balanc\w*|assign\w*|partition\w*) strateg|strateg(y|ies) (of|for) (the )?(balanc|assign|partition)`)
	// References to documents outside the repository.
	add(`(?:the|this|our) contract|contract\.md`, "name the interface or the section that says so", `contract (of|with) the money api`)
	add(`facts? [0-9]+`, "the reason itself, in a sentence")
	add(`seeds? 0[0-9]+`, "the reason itself, in a sentence")
	list = append(list, wording{bad: regexp.MustCompile(`§`), use: "the reason itself, or a link into the repository"})
	// "per", not "a".
	things := `(?:promotion|type|stream|row|batch|partition|instance|process|consumer|group|message|record|server|topic|queue|entry|attempt|target|payout|handler|route|` +
		`command|subscription|connection|slot|test|file|worker|key|poll|round|run|call)`
	list = append(list, wording{
		bad:    regexp.MustCompile(`(?i)\b(?:an?|one|two|three|four|five|ten|[0-9][0-9.,_]*|many|few) [\w-]+ an? ` + things + `\b`),
		except: regexp.MustCompile(`(?i) (` + glue + `|[\w-]+ing|[\w-]+ed) an? [\w-]+$`),
		use:    `"per" or "for each"`,
	}, wording{
		bad:    regexp.MustCompile(`(?i)\b[\w-]+ an? (?:second|minute|hour|day|week|month)\b`),
		except: regexp.MustCompile(`(?i)^(` + glue + `|[\w-]+ing|[\w-]+ed|an?) an? |second (time|one|call|attempt|instance|\w+)`),
		use:    `"per"`,
	})
	return list
}

// glue are words before "a" that don't mean "per".
const glue = `of|in|for|with|without|to|is|was|has|have|had|and|or|nor|as|by|from|on|onto|at|than|when|per|not|only|but|after|before|into|under|until|` +
	`within|over|about|above|below|between|through|then|if|that|which|so|be|are|were|can|may|must|like|via|such|half|quarter|` +
	`makes?|made|gives?|takes?|took|reads?|writes?|sends?|gets?|got|needs?|compares?|follows?|tells?|reports?|sees?|finds?|found|lasts?|waits?|holds?|held|runs?|starts?|stops?|ends?|also|` +
	`returns?|every|least|most|all|both|even|just|once more|becomes?|means?|leaves?|left|adds?|opens?|closes?|names?|meets?|uses?|claims?|joins?|keeps?|kept|while|because`

// privateWords are words of identifiers that a reader would have to learn, and the field's term.
func privateWords() map[string]string {
	words := map[string]string{}
	for _, row := range []struct{ use, bad string }{
		{"inFlight", "inHand"},
		{"worker, workerPool", "crew crews hand hands"},
		{"batcher", "lane lanes"},
		{"reconcile, evaluate, control loop", "keeper keepers tend tends tending tended judge judged judges"},
		{"in-flight table, write set, journal", "book books booked booking"},
		{"deadLetter", "letter letters"},
		{"lease", "turn turns"},
		{"log sampler", "notices"},
		{"preview, status", "looker standing"},
		{"what it does", "say nobody somebody whoever whom anew beside"},
		{"single flight", "asker"},
		{"keyed mutex", "keyed"},
		{"decommission", "takeOut takenOut takeout"},
		{"reactivate, restore", "putBack"},
		{"queue location", "hint hints hinted"},
		{"deliverer, deliver", "carrier carry"},
		{"revoke, due, release", "recall recalled ripen ripe withdraw withdrawn"},
		{"deleted pending, started", "ghost ghosts begun"},
		{"release, released", "giveBack givenBack gaveBack gives"},
		{"claim, remove", "rescue rescued forget forgotten"},
		{"failpoint", "killpoint killpoints"},
		{"environment", "home homes"},
		{"misconfigured", "ownFault ownFaults"},
		{"look up, query", "ask asks asked"},
		{"promotion type", "strategy strategies"},
		{"simulator", "moneysim moneyapi"},
	} {
		for _, bad := range splitBlanks(row.bad) {
			words[bad] = row.use
		}
	}
	return words
}
