package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Addresses of the pages. Those of a promotion and of a payout have its id as the commands print it.
const (
	campaignsPage = "campaigns"
	campaignPage  = "campaigns/campaign"
	payoutPage    = "campaigns/payout"
	letterPage    = "dead-letters/letter" // of the plugin deadletter, as the next one
	lettersPage   = "dead-letters/group"
)

const (
	// shownPromotions is the number of promotions on a page. How fast each runs is read from Redis.
	shownPromotions = 50
	// shownProblems is the number of problems on a page.
	shownProblems = 200
	// shownOldest is the number of waiting payouts on a page. Each of them is explained.
	shownOldest = 5
)

// Console implements console.Contributor: the promotions, one of them, and one payout with its history.
func (p *Plugin) Console() []console.Page {
	promotion, payout := []string{campaign.FieldPromotion}, []string{campaign.FieldPayout}
	find := console.Panel{Name: "find", Title: "Find a payout, such as POINT:12345:777", Values: []string{campaign.FieldPayout, campaign.FieldPromotion}, Load: findPayout}
	return []console.Page{
		{Path: campaignsPage, Title: "Campaigns", Order: 4, Panels: []console.Panel{
			{Name: "unfinished", Title: "Unfinished", Load: p.showUnfinished},
			{Name: "campaigns", Title: "Campaigns, highest number first", Load: pace("", p.showCampaigns)},
			{Name: "unknown", Title: "Unknown, an operator decides", Load: pace("", p.showAllUnknown)},
			find,
			{Name: "open", Title: "Find a campaign, such as POINT:12345", Load: findCampaign},
		}},
		{Path: campaignPage, Title: "Campaign", Hidden: true, Panels: []console.Panel{
			{Name: "none", Title: "No campaign", Values: promotion, Load: p.showNoCampaign},
			{Name: "campaign", Title: "Totals", Values: promotion, Load: pace(campaign.FieldPromotion, p.showCampaign), Actions: []string{"campaign pause", "campaign resume", "campaign cancel", "campaign rebuild"}},
			{Name: "oldest", Title: "Waiting longest", Values: promotion, Load: pace(campaign.FieldPromotion, p.showOldest)},
			{Name: "summaries", Title: "Summaries", Values: promotion, Load: pace(campaign.FieldPromotion, p.showSummaries)},
			{Name: "problems", Title: "Unknown, an operator decides", Values: promotion, Load: pace(campaign.FieldPromotion, p.showUnknown)},
			{Name: "perhaps", Title: "Perhaps charged, the service finds out", Values: promotion, Load: pace(campaign.FieldPromotion, p.showPerhapsCharged)},
			{Name: "letters", Title: "Dead letters that wait for a person", Values: promotion, Load: pace(campaign.FieldPromotion, p.showLetters)},
			find,
		}},
		{Path: payoutPage, Title: "Payout", Hidden: true, Panels: []console.Panel{
			{Name: "payout", Title: "What is known", Values: payout, Load: pace(campaign.FieldPayout, p.showPayout), Reveal: p.reveal, Actions: []string{"unknown resolve"}},
			{Name: "money-api", Title: "What the Money API says", Asked: true, Values: payout, Load: p.askMoneyAPI},
			find,
		}},
	}
}

func findCampaign(context.Context, console.Query) (console.Block, error) {
	return console.Find{Page: campaignPage, Fields: []operate.Field{{Name: campaign.FieldPromotion, Required: true}}}, nil
}

// showUnfinished reads the last measurement alone, so it shows what is known while the database is frozen.
func (p *Plugin) showUnfinished(context.Context, console.Query) (console.Block, error) {
	m := p.measured()
	if m.At.IsZero() {
		return nil, cmp.Or(m.Err, errors.New("the ledger has not been measured yet"))
	}
	t := console.Table{
		Columns: console.Columns("Campaign", "State", "Oldest unpaid", "Overdue for"),
		Empty:   "No campaign that runs has payouts that are not settled.",
		Note:    "Measured " + console.Moment(m.At).Text + ". A paused campaign is in the list below only.",
	}
	if why := p.run.clientState().Why(); why != "" {
		t.Note = "This instance sends no calls now: " + why + ". " + t.Note
	}
	for i, w := range m.Waiting {
		if i == shownProblems {
			t.Note = fmt.Sprintf("Only %d of %d are shown. ", shownProblems, len(m.Waiting)) + t.Note
			break
		}
		state := stateOf(w.State, false)
		if w.WaitsForPlace {
			state = console.Word(state.Text + ", waits for a place").In(operate.Warn)
		}
		t.Rows = append(t.Rows, []console.Cell{linked(w.Promotion), state, span(w.OldestUnpaid), span(w.Overdue)})
	}
	if m.Err == nil {
		return t, nil
	}
	return console.Blocks{console.Checks{{Name: "ledger", Level: operate.Fail, Text: m.Err.Error()}}, t}, nil
}

func (p *Plugin) showCampaigns(ctx context.Context, _ console.Query) (console.Block, error) {
	env := p.campaigns()
	list, err := env.List(ctx, "", shownPromotions)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Campaign", "State", "Accepted", "Paid", "Failed", "Unknown", "Cancelled", "Waiting", "Per second", "Expected end"),
		Empty:   "The ledger has no campaigns.",
		Note:    "Waiting are the payouts that are not settled. Per second are those that all instances settled within the last minute.",
	}
	now := time.Now()
	running, away := env.Resources.Running(ctx)
	var rates map[payouts.Promotion]*campaign.Rate
	if away == nil { // a server that is away is asked once
		rates, away = env.Rates(ctx, list.Promotions, running)
	}
	for _, c := range list.Promotions {
		id := payouts.Promotion{Type: c.Type, ID: c.Promotion}
		perSecond, end, state := console.Cell{Text: "–", Right: true}, console.Cell{Text: "–"}, withMissing(stateOf(c.State, c.Finished), c.State, c.PayoutCounts, c.TotalCount)
		if c.Pending > 0 {
			rate := rates[id]
			perSecond, end = rateCell(rate), endCell(campaign.ExpectedEnd(now, c.State, c.Pending, rate), c.State, c.Pending, rate)
			state = withStop(state, c.State, rate)
		}
		t.Rows = append(t.Rows, []console.Cell{
			linked(id), state, console.Count(c.Accepted), console.Count(c.Paid), problem(c.Failed, operate.Warn),
			problem(c.Unknown, operate.Fail), console.Count(c.Cancelled), console.Count(c.Pending), perSecond, end,
		})
	}
	if away != nil {
		t.Note = "How fast they are paid is not known: " + away.Error() + ". " + t.Note
	}
	if list.More {
		t.Note = fmt.Sprintf("Only the %d with the highest numbers are shown; campaign list has --type and --limit. ", shownPromotions) + t.Note
	}
	return t, nil
}

// showNoCampaign is in place of the totals, and so of the actions, of a campaign that does not exist.
func (p *Plugin) showNoCampaign(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	if instead != "" {
		return instead, nil
	}
	l := p.run.opened.Load()
	if l == nil {
		return nil, console.ErrNothing // the totals say so
	}
	known, err := l.Known(ctx, id)
	if err != nil || known {
		return nil, console.ErrNothing
	}
	text := id.String() + " is not in the ledger: no record of it was accepted. Its records may still wait in Kafka. " +
		"The commands campaign pause and campaign cancel have --future for a campaign that is still to come."
	if paused := p.acceptPaused(ctx, id.Type); paused != "" {
		text += " " + paused + "."
	}
	return console.Text(text), nil
}

func (p *Plugin) showCampaign(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	if instead != "" {
		return nil, console.ErrNothing
	}
	all, away := p.campaigns().Status(ctx, id)
	if errors.Is(away, ledger.ErrNotFound) {
		return nil, console.ErrNothing
	} else if len(all.Promotions) == 0 {
		return nil, away
	}
	s := all.Promotions[0]
	state := withMissing(stateOf(s.State, s.Finished), s.State, s.PayoutCounts, s.TotalCount)
	if s.Counts.WaitsForPlace > 0 {
		state = console.Word(state.Text + ", waits for a place").In(operate.Warn)
	}
	if s.Pending > 0 {
		state = withStop(state, s.State, s.Rate)
	}
	dead := console.Number(s.DeadWaiting)
	if s.DeadWaiting != nil {
		dead = problem(*s.DeadWaiting, operate.Warn)
		if *s.DeadWaiting > 0 { // to where all of them are replayed or discarded
			dead = dead.At(linkToLetters(p.campaigns().Plugin, id, ""))
		}
	}
	blocks := console.Blocks{
		console.Stats{
			{Name: "Campaign", Cell: console.Word(id.String())},
			{Name: "State", Cell: state},
			{Name: "Announced", Cell: announced(s.TotalCount)},
			{Name: "Oldest unpaid", Cell: span(s.Counts.OldestUnpaid)},
		},
		console.Stats{
			{Name: "Accepted", Cell: console.Count(s.Accepted)},
			{Name: "Paid", Cell: console.Count(s.Paid)},
			{Name: "Failed", Cell: problem(s.Failed, operate.Warn)},
			{Name: "Unknown", Cell: problem(s.Unknown, operate.Fail)},
			{Name: "Cancelled", Cell: console.Count(s.Cancelled)},
			{Name: "Waiting", Cell: console.Count(s.Pending)},
		},
		console.Stats{
			{Name: "Next from the stream", Cell: console.Count(s.InStream)},
			{Name: "Next from the retry topic", Cell: console.Count(s.InRetry - s.WithWorker)},
			{Name: "With a worker", Cell: console.Count(s.WithWorker)},
			{Name: "Next by the feeder", Cell: console.Count(s.InNoQueue)},
			{Name: "Leased by workers", Cell: console.Count(s.InFlight)},
			{Name: "Perhaps charged", Cell: perhapsCharged(s)},
			{Name: "Dead letters that wait", Cell: dead},
			{Name: "Dead letters so far", Cell: console.Count(s.Dead)},
		},
	}
	if s.Pending > 0 {
		blocks = append(blocks, console.Text(countsPayouts))
	}
	return append(blocks, speedOf(s), checksOf(s), instancesOf(s), auditOf(s.Audit)), nil
}

// countsPayouts says why the numbers of a campaign differ from those of its routes.
const countsPayouts = "Each payout that waits is counted once, where its next try comes from. The routes count records: one stays in the retry topic " +
	"until it is read, also when its payout has ended, or was overdue and is enqueued again by the feeder."

// withMissing adds how many of the announced payouts are accepted, while all of these are settled.
func withMissing(state console.Cell, s rules.GroupState, c ledger.PayoutCounts, announced int64) console.Cell {
	return console.Word(state.Text + campaign.MissingText(s, c, announced)).In(state.Level)
}

// withStop adds why no instance sends calls.
func withStop(state console.Cell, s rules.GroupState, rate *campaign.Rate) console.Cell {
	if why := rate.Stopped(); why != "" && s != rules.GroupPaused {
		return console.Word(state.Text + ", " + why).In(operate.Warn)
	}
	return state
}

// perhapsCharged is a warning unless each of them is a call that runs now.
func perhapsCharged(s campaign.Status) console.Cell {
	cell := console.Count(s.PerhapsCharged)
	if s.PerhapsCharged > s.Calling {
		return cell.In(operate.Warn)
	}
	return cell
}

func speedOf(s campaign.Status) console.Block {
	if s.Rate == nil {
		return console.Stats{{Name: "Per second", Cell: console.Number(nil)}, {Name: "Expected end", Cell: console.Word(console.Unknown)}}
	}
	breaker := console.Word(s.Rate.BreakerText())
	if len(s.Rate.NotTaking) > 0 {
		breaker = breaker.In(operate.Warn)
	}
	limit := console.Word(s.LimitedBy)
	if s.LimitedBy == "" {
		limit.Text = "–"
	}
	return console.Stats{
		{Name: "Per second", Cell: rateCell(s.Rate)},
		{Name: "Limited by", Cell: limit},
		{Name: "Expected end", Cell: endCell(s.ExpectedEnd, s.State, s.Pending, s.Rate)},
		{Name: "Latency", Cell: console.Word(s.Rate.LatencyText())},
		{Name: "Answers", Cell: console.Word(s.Rate.AnswersText())},
		{Name: "These are", Cell: console.Word(s.Rate.WindowText())},
		{Name: "Breaker", Cell: breaker},
		{Name: "Calls now", Cell: console.Count(s.Rate.Calling)},
		{Name: "Calls at most, of all campaigns", Cell: console.Count(s.Rate.Limit)},
	}
}

// checksOf says whether what was accepted has ended or is open, and what is not known.
func checksOf(s campaign.Status) console.Checks {
	ended := s.Paid + s.Failed + s.Unknown + s.Cancelled
	check := operate.Check{Name: "balance", Level: operate.OK, Text: fmt.Sprintf("accepted %d = ended %d + waiting %d", s.Accepted, ended, s.Pending)}
	where := s.InStream + s.InRetry + s.InNoQueue
	if s.Accepted != ended+s.Pending || s.Pending != where {
		check = operate.Check{Name: "balance", Level: operate.Fail,
			Text:   fmt.Sprintf("accepted %d, ended %d, waiting %d, of which %d are in a queue: the totals of the ledger are wrong", s.Accepted, ended, s.Pending, where),
			Remedy: fmt.Sprintf("campaign reconcile %s %d names the targets", s.Type, s.Promotion)}
	}
	checks := console.Checks{check}
	if len(s.Gone) > 0 {
		checks = append(checks, operate.Check{Name: "leases", Level: operate.Warn, Text: s.LeasedText()})
	}
	for _, m := range s.NotKnown {
		checks = append(checks, operate.Check{Name: "not known", Level: operate.Fail, Text: m})
	}
	if s.ForeignOwner != "" {
		checks = append(checks, operate.Check{Name: "stream", Level: operate.Fail, Text: "it belongs to the deployment with the ledger id " + s.ForeignOwner + ", so payouts wait here"})
	}
	for _, g := range s.DelayingGroups {
		checks = append(checks, operate.Check{Name: "stream", Level: operate.Warn, Text: fmt.Sprintf("the group %s of another program has delayed its trimming for %s", g.Group, console.Short(g.For))})
	}
	return checks
}

func instancesOf(s campaign.Status) console.Table {
	t := console.Table{
		Columns: console.Columns("Instance", "Calls now", "Calls at most", "Entries held", "Breaker", "Since", "Last message"),
		Empty:   "No instance that pays runs.",
	}
	if s.Instances == nil {
		t.Empty = "The instances that read its stream are not known."
		return t
	}
	t.Note = "Entries held are read from the stream: they are called, wait for a call slot, or wait for their turn."
	for i, x := range slices.Concat(s.Instances, s.Others) {
		calls, breaker := console.Number(nil), console.Word(console.Unknown)
		if x.Note != nil {
			calls, breaker = console.Count(0), console.Word(x.Note.Client.Breaker)
			if x.Note.Recent != nil {
				calls = console.Count(x.Note.Recent.Calling)
			}
		}
		if i >= len(s.Instances) {
			none := console.Cell{Text: "–"}
			t.Rows = append(t.Rows, []console.Cell{console.Word(x.Instance), calls, none, none, breaker, console.Word("does not read its stream now"), none})
			continue
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(x.Instance), calls, console.Count(x.Slots), console.Count(x.InFlight), breaker, console.Moment(x.Since), console.Moment(x.LastMessage),
		})
	}
	return t
}

func (p *Plugin) showSummaries(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	l := p.run.opened.Load()
	if instead != "" || l == nil {
		return nil, console.ErrNothing
	}
	all, err := l.Summaries(ctx, id, shownProblems)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Summary", "Paid", "Failed", "Unknown", "Cancelled"), Empty: "No payout is settled yet.",
		Note: "What waits is counted for the campaign only.",
	}
	if len(all) == shownProblems {
		t.Note = fmt.Sprintf("Only the first %d are shown. ", shownProblems) + t.Note
	}
	for _, s := range all {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(fmt.Sprint(s.ID)), console.Count(s.Paid), problem(s.Failed, operate.Warn), problem(s.Unknown, operate.Fail), console.Count(s.Cancelled),
		})
	}
	return t, nil
}

// showPerhapsCharged lists what the totals count as perhaps charged.
func (p *Plugin) showPerhapsCharged(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	if instead != "" {
		return nil, console.ErrNothing
	}
	rows, err := p.campaigns().PerhapsCharged(ctx, id, shownProblems)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Payout", "State", "First sent", "Instance", "Attempts used", "Lookups used", "Class", "Last answer"),
		Empty:   "No payout of it is perhaps charged.",
		Note:    "Those in the state sending have a call that runs now, or whose instance ended. " + notUsed,
	}
	for _, r := range rows {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(r.Key.String()).At(linkTo(payoutPage, campaign.FieldPayout, r.Key.String())), payoutState(r.State), console.Moment(r.FirstSentAt), console.Word(r.AttemptBy),
			console.Count(r.Attempts), console.Count(r.Lookups), console.Word(r.LastClass), console.Word(r.LastError),
		})
	}
	if len(rows) == shownProblems {
		t.Note = fmt.Sprintf("Only the first %d are shown. ", shownProblems) + t.Note
	}
	return t, nil
}

func (p *Plugin) showLetters(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	if instead != "" {
		return nil, console.ErrNothing
	}
	env := p.campaigns()
	list, n, stored, err := env.DeadLetters.Waiting(ctx, env.Plugin, id.String(), shownProblems)
	if err != nil {
		return nil, err
	} else if !stored {
		return console.Text("Dead letters are in their topics alone, because there is no store of them."), nil
	}
	t := console.Table{
		Columns: console.Columns("Dead letter", "Payout", "Failed", "Class", "Attempts", "Error"),
		Empty:   "No dead letter of it waits.",
	}
	for _, d := range list {
		about := console.Word(d.Subject)
		if _, err := campaign.PayoutOf([]string{d.Subject}); err == nil {
			about = about.At(linkTo(payoutPage, campaign.FieldPayout, d.Subject))
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(d.ID).At(linkTo(letterPage, "id", d.ID)), about, console.Moment(d.Failed), console.Word(d.Class), console.Count(d.Attempts), console.Word(d.Error),
		})
	}
	if more := n - int64(len(list)); more > 0 && len(list) > 0 {
		t.Note = fmt.Sprintf("… and %d more.", more)
		t.Next = linkToLetters(env.Plugin, id, list[len(list)-1].ID)
	}
	return t, nil
}

// promotionIn returns the promotion of an address, or what is said instead.
func promotionIn(q console.Query) (payouts.Promotion, console.Text) {
	if q.Text(campaign.FieldPromotion) == "" {
		return payouts.Promotion{}, "Give a campaign, such as POINT:12345."
	}
	id, err := campaign.PromotionOf(q.List(campaign.FieldPromotion))
	if err != nil {
		return id, console.Text("The campaign " + err.Error() + ".")
	}
	return id, ""
}

func linkTo(page, name, value string) string { return page + "?" + url.Values{name: {value}}.Encode() }

// linkToLetters is the address of the dead letters of a promotion that wait for a person, after one of them, or of all.
func linkToLetters(plugin string, id payouts.Promotion, after string) string {
	values := url.Values{"plugin": {plugin}, "subject": {id.String()}}
	if after != "" {
		values.Set("before", after)
	}
	return lettersPage + "?" + values.Encode()
}

func linked(id payouts.Promotion) console.Cell {
	return console.Word(id.String()).At(linkTo(campaignPage, campaign.FieldPromotion, id.String()))
}

func stateOf(s rules.GroupState, finished bool) console.Cell {
	if finished && s == rules.GroupRunning {
		return console.Word("finished").In(operate.OK)
	}
	cell := console.Word(strings.ToLower(string(s)))
	if s == rules.GroupRunning {
		return cell
	}
	return cell.In(operate.Warn)
}

// problem returns a number that is in order only if it is 0.
func problem(n int64, level operate.Level) console.Cell {
	if n == 0 {
		return console.Count(n)
	}
	return console.Count(n).In(level)
}

func span(d time.Duration) console.Cell {
	if d <= 0 {
		return console.Cell{Text: "–", Data: 0, Right: true}
	}
	return console.Cell{Text: console.Short(d), Data: d.Seconds(), Right: true}
}

func announced(n int64) console.Cell {
	if n == 0 {
		return console.Number(nil)
	}
	return console.Count(n)
}

func rateCell(r *campaign.Rate) console.Cell {
	if r == nil {
		return console.Number(nil)
	}
	return console.Rate(&r.PerSecond)
}

func endCell(at time.Time, state rules.GroupState, pending int64, rate *campaign.Rate) console.Cell {
	switch {
	case pending == 0:
		return console.Cell{Text: "–"}
	case state == rules.GroupPaused:
		return console.Cell{Text: "paused"}
	case at.IsZero() && rate.Stopped() != "":
		return console.Cell{Text: console.Unknown + ": " + rate.Stopped()}
	case at.IsZero():
		return console.Cell{Text: console.Unknown}
	}
	return console.Until(at)
}

var _ console.Contributor = (*Plugin)(nil)
