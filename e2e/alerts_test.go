package e2e

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

// alerts reads the rules as Prometheus does it: strictly, with expressions and templates.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	text, err := os.ReadFile("../configs/prometheus/alerts.yaml")
	require.NoError(t, err)
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation)
	require.Empty(t, errs)
	var all []rulefmt.Rule
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// happening is a change of what is scraped: every series that the selector matches has another
// past.
type happening struct {
	selector string
	value    func(ago time.Duration, was float64) float64
}

// is makes a gauge v for as long as a query looks back.
func is(selector string, v float64) happening {
	return happening{selector, func(time.Duration, float64) float64 { return v }}
}

// grows makes a counter, or a gauge, grow by perSecond.
func grows(selector string, perSecond float64) happening {
	return happening{selector, func(ago time.Duration, was float64) float64 { return was + 1e6 - perSecond*ago.Seconds() }}
}

// raisers says what raises each alert.
func raisers() map[string][]happening {
	return map[string][]happening{
		"MillraceNothingIsPaid":             {is(`millrace_promotion_overdue_seconds{type="POINT"}`, 400)},
		"MillraceOldestUnpaidTooOld":        {is(`millrace_promotion_oldest_unpaid_seconds{type="VOUCHER"}`, 8000)},
		"MillraceUnknownPayouts":            {is(`millrace_promotion_payouts{type="POINT",state="UNKNOWN"}`, 1)},
		"MillraceBacklogInLedger":           {grows(`millrace_streams_enqueued_total{type="POINT",outcome="full"}`, 1)},
		"MillraceFeederFailing":             {grows(`millrace_promotion_feeder_failures_total{type="POINT"}`, 0.1)},
		"MillracePromotionsWaitForPlace":    {is(`millrace_promotion_waiting_for_place{type="POINT"}`, 3)},
		"MillracePromotionPaused":           {is(`millrace_promotion_paused_seconds{type="VOUCHER"}`, 90_000)},
		"MillraceUnannounced":               {grows(`millrace_promotion_unannounced_total{type="POINT"}`, 0.01)},
		"MillraceLedgerSilent":              {is(`millrace_promotion_measured_timestamp_seconds`, 1e9)},
		"MillraceLedgerTakesNothing":        {grows(`millrace_ledger_transaction_failures_total{cause="refused"}`, 0.1)},
		"MillraceFarSideMisconfigured":      {is(`millrace_once_http_misconfigured`, 1)},
		"MillraceFarSideBreakerOpen":        {is(`millrace_once_http_breaker_state`, 2)},
		"MillraceFarSideUncertain":          {grows(`millrace_once_http_calls_total{class="unclear"}`, 1), grows(`millrace_once_http_calls_total{class="done"}`, 4)},
		"MillraceEffectsNotCalled":          {is(`millrace_once_oldest_due_seconds`, 400), grows(`millrace_once_attempts_total{state="stale"}`, 1)},
		"MillraceEffectsLate":               {is(`millrace_once_oldest_due_seconds`, 8000)},
		"MillraceEffectsFailed":             {grows(`millrace_once_attempts_total{kind="notice",state="FAILED"}`, 0.01)},
		"MillraceEffectsUnknown":            {is(`millrace_once_backlog{kind="notice",state="unknown"}`, 1)},
		"MillraceEffectResultsWait":         {is(`millrace_once_oldest_result_seconds{kind="notice"}`, 400)},
		"MillraceDeadLetters":               {grows(`millrace_deadletter_published_total{topic="campaign-promotion-point-dead"}`, 0.01)},
		"MillraceDeadLettersUnpublished":    {grows(`millrace_deadletter_unpublished_total{topic="campaign-promotion-point-dead"}`, 0.01)},
		"MillraceDeadLettersWaiting":        {is(`millrace_deadletter_stored{state="parked"}`, 2)},
		"MillraceDeadLetterRelayFailing":    {is(`millrace_deadletter_relay_failing`, 1)},
		"MillraceMessagesDropped":           {grows(`millrace_messages_total{outcome="dropped"}`, 0.01)},
		"MillraceEntriesLost":               {grows(`millrace_reclaim_lost_total{shard="POINT"}`, 0.001)},
		"MillraceShardFull":                 {is(`millrace_redis_shard_entries{domain="scan",shard="1"}`, 100_000)},
		"MillraceStreamsLost":               {grows(`millrace_promotion_streams_lost_total{type="POINT"}`, 0.001)},
		"MillraceStreamRefused":             {grows(`millrace_streams_refused_total{type="POINT"}`, 0.1)},
		"MillraceStreamForeign":             {is(`millrace_streams_foreign{type="POINT",active="true"}`, 1)},
		"MillraceJobEventsNotRouted":        {is(`millrace_redis_shard_entries{domain="scan",shard="1"}`, 12)},
		"MillraceJobEventsDelayed":          {grows(`millrace_router_delay_duration_seconds_bucket{le="+Inf"}`, 1)},
		"MillraceJobEventsMissing":          {grows(`millrace_router_gaps_total{domain="scan"}`, 0.01)},
		"MillraceJobFeedFailing":            {grows(`millrace_router_publish_failures_total{domain="scan"}`, 0.1)},
		"MillraceGatewayFeedLost":           {grows(`millrace_router_log_reads_total{reason="lost"}`, 0.1)},
		"MillraceShardWithoutOwner":         {is(`millrace_redis_shards_owned{domain="scan"}`, 1)},
		"MillraceSlowClients":               {grows(`millrace_sse_closed_total{reason="slow"}`, 1), grows(`millrace_sse_opened_total`, 4)},
		"MillraceStreamsFull":               {grows(`millrace_web_refused_total{reason="full"}`, 0.1)},
		"MillraceConnectionsRefused":        {grows(`millrace_web_refused_connections_total{reason="full"}`, 0.1)},
		"MillraceRoomWithoutTicks":          {is(`millrace_room_tick_age_seconds{event="42"}`, 40)},
		"MillraceRoomTicksMissed":           {grows(`millrace_room_ticks_missed_total`, 0.5)},
		"MillraceRoomPromotionsDelayed":     {grows(`millrace_room_promotion_delay_duration_seconds_bucket{le="+Inf"}`, 1)},
		"MillraceRoomHeldAgain":             {grows(`millrace_room_holds_total{event="42"}`, 0.005)},
		"MillraceRoomRecordsAside":          {grows(`millrace_room_aside_total{event="42"}`, 0.01)},
		"MillraceRoomDrawFailing":           {grows(`millrace_room_draw_failures_total{event="42"}`, 0.01)},
		"MillraceEventServiceFailing":       {grows(`millrace_room_event_service_calls_total{result="not_sent"}`, 0.1)},
		"MillraceRoomWithoutCapacity":       {is(`millrace_room_capacity_unknown`, 1)},
		"MillraceRoomSoldOut":               {is(`millrace_room_sold_out`, 1)},
		"MillraceRoomReplicasMissing":       {is(`millrace_room_replicas_missing`, 1)},
		"MillraceRoomOverCapacity":          {is(`millrace_room_excess`, 1)},
		"MillraceRoomSalesRefused":          {grows(`millrace_room_late_finish_total{event="42",answer="conflict"}`, 0.01)},
		"MillraceRoomScriptSlow":            {grows(`millrace_room_promotion_script_duration_seconds_bucket{le="+Inf"}`, 1)},
		"MillraceRoomSignsFailing":          {grows(`millrace_room_sign_failures_total`, 0.1)},
		"MillraceRoomNotificationsWait":     {is(`millrace_room_stream_entries{stream="DISPATCH"}`, 5000)},
		"MillraceRoomShopFailing":           {grows(`millrace_room_shop_requests_total{request="finish",answer="unavailable"}`, 0.1)},
		"MillraceReclaimFailing":            {grows(`millrace_reclaim_failures_total{shard="POINT"}`, 0.01)},
		"MillraceNoInstanceRuns":            {is(`up`, 0)},
		"MillraceInstanceDown":              {is(`up`, 0)},
		"MillraceInstanceNotReady":          {is(`millrace_health_check_ok{check="promotion"}`, 0)},
		"MillraceRoutePaused":               {is(`millrace_route_paused_seconds{route="promotion.point.stream"}`, 90_000)},
		"MillraceHandlersStuck":             {is(`millrace_handlers_stuck{route="promotion.point.stream"}`, 1)},
		"MillraceKafkaHeadOfLine":           {is(`millrace_kafka_head_of_line_seconds{topic="campaign-promotion-point-publish"}`, 400)},
		"MillraceKafkaLag":                  {grows(`millrace_kafka_lag{topic="campaign-promotion-point-publish"}`, 10)},
		"MillraceKafkaOpenTransaction":      {is(`millrace_kafka_open_transaction_seconds{topic="campaign-promotion-point-publish"}`, 100)},
		"MillraceKafkaUnreadablePartitions": {is(`millrace_kafka_unreadable_partitions{topic="campaign-promotion-point-publish"}`, 2)},
		"MillraceKafkaPublishErrors":        {grows(`millrace_kafka_publish_errors_total{topic="campaign-promotion-point-retry"}`, 0.1)},
		"MillraceRedisReadErrors":           {grows(`millrace_redis_read_errors_total`, 0.1)},
	}
}

// alsoRaise are states that raise an alert in another way than that of raisers.
func alsoRaise() map[string][]happening {
	return map[string][]happening{
		"MillraceLedgerTakesNothing":  {grows(`millrace_once_transaction_failures_total{cause="unreachable"}`, 0.1)},
		"MillraceUnannounced":         {is(`millrace_promotion_unknown_streams{type="VOUCHER"}`, 1)},
		"MillraceEntriesLost":         {grows(`millrace_redis_unread_removed_total`, 0.001)},
		"MillraceEventServiceFailing": {grows(`millrace_room_event_service_calls_total{result="invalid"}`, 0.1)},
		// Payouts of the other type, and its pause, don't hide that one stands still.
		"MillraceNothingIsPaid": {
			is(`millrace_promotion_overdue_seconds`, 400), grows(`millrace_promotion_attempts_total{type="VOUCHER",state="SUCCESS"}`, 50),
			is(`millrace_promotion_route_paused{type="VOUCHER"}`, 1),
		},
	}
}

// quiets are states that look alike and raise nothing.
func quiets() map[string][]happening {
	return map[string][]happening{
		// A large campaign: much is due, and it is being paid.
		"MillraceNothingIsPaid": {is(`millrace_promotion_overdue_seconds`, 4000), grows(`millrace_promotion_attempts_total{state="SUCCESS"}`, 50)},
		// More effects are due than fit into five minutes, and calls end.
		"MillraceEffectsNotCalled": {is(`millrace_once_oldest_due_seconds`, 4000), grows(`millrace_once_attempts_total{state="AMBIGUOUS"}`, 1)},
		// An effect is perhaps done, and is looked up.
		"MillraceEffectsFailed": {grows(`millrace_once_attempts_total{state="AMBIGUOUS"}`, 1)},
		// Transactions that met a lock or a deadlock are tried again.
		"MillraceLedgerTakesNothing": {grows(`millrace_ledger_transaction_failures_total{cause=~"contended|locked"}`, 5)},
		// A campaign has just been published, and the lag shrinks.
		"MillraceKafkaLag": {{`millrace_kafka_lag`, func(ago time.Duration, _ float64) float64 { return 20_000 + 10*ago.Seconds() }}},
		// A slow record that is answered soon.
		"MillraceKafkaHeadOfLine": {is(`millrace_kafka_head_of_line_seconds`, 200)},
		// A program that writes in transactions, each of which ends soon.
		"MillraceKafkaOpenTransaction": {is(`millrace_kafka_open_transaction_seconds`, 20)},
		"MillraceFarSideUncertain":     {grows(`millrace_once_http_calls_total{class="unclear"}`, 0.05), grows(`millrace_once_http_calls_total{class="done"}`, 4)},
		"MillraceStreamForeign":        {is(`millrace_streams_foreign{active="false"}`, 7)},
		"MillraceShardFull":            {is(`millrace_redis_shard_entries`, 99_999)},
		"MillraceNoInstanceRuns":       {is(`millrace_health_check_ok`, 0)},
		// Routers are busy, and keep up.
		"MillraceJobEventsNotRouted": {is(`millrace_redis_shard_entries`, 100), grows(`millrace_router_processed_total`, 50)},
		"MillraceJobEventsDelayed":   {grows(`millrace_router_delay_duration_seconds_bucket`, 50)},
		"MillraceGatewayFeedLost":    {grows(`millrace_router_log_reads_total{reason="connect"}`, 50)},
		"MillraceSlowClients":        {grows(`millrace_sse_closed_total{reason="gone"}`, 4), grows(`millrace_sse_opened_total`, 4)},
		"MillraceStreamsFull":        {grows(`millrace_web_refused_total{reason="foreign_origin"}`, 1)},
		"MillraceConnectionsRefused": {is(`millrace_web_connections`, 20_000), is(`millrace_web_refused_connections_total{reason="full"}`, 7)},
		// A large event, one restart of Redis, and a node that is behind for a moment.
		"MillraceRoomWithoutTicks":      {is(`millrace_room_tick_age_seconds`, 12), is(`millrace_room_waiting`, 1e6)},
		"MillraceRoomTicksMissed":       {grows(`millrace_room_ticks_missed_total`, 0.05)},
		"MillraceRoomPromotionsDelayed": {grows(`millrace_room_promotion_delay_duration_seconds_bucket`, 50)},
		"MillraceRoomHeldAgain":         {grows(`millrace_room_holds_total`, 0.0005), grows(`millrace_room_rewinds_total`, 0.0005)},
		"MillraceEventServiceFailing":   {grows(`millrace_room_event_service_calls_total{result=~"seats|no_event|no_seats"}`, 10)},
		"MillraceRoomWithoutCapacity":   {is(`millrace_room_slots_free`, 0), is(`millrace_room_waiting`, 1e6)},
		"MillraceRoomSalesRefused":      {grows(`millrace_room_late_finish_total{answer="sold"}`, 1)},
		"MillraceRoomScriptSlow":        {grows(`millrace_room_promotion_script_duration_seconds_bucket`, 50)},
		"MillraceRoomNotificationsWait": {is(`millrace_room_stream_entries`, 200)},
		"MillraceRoomShopFailing":       {grows(`millrace_room_shop_requests_total{answer=~"ok|no_shop"}`, 50)},
	}
}

// quietInAPause are the alerts that say that work waits. They are silent while an operator has paused its route.
func quietInAPause() []string {
	return []string{"MillraceNothingIsPaid", "MillraceOldestUnpaidTooOld", "MillraceKafkaHeadOfLine", "MillraceKafkaLag", "MillraceJobEventsNotRouted"}
}

// past is long enough for every range and every `for`.
const past = 2 * time.Hour

// raised returns what an alert's expression answers after the happenings, now and when its `for`
// began.
func raised(t *testing.T, e *promql.Engine, healthy *recorded, rule rulefmt.Rule, what []happening) (now, before promql.Vector) {
	t.Helper()
	then := healthy.copied()
	for _, h := range what {
		require.NotZero(t, then.change(t, h.selector, h.value), "%s: nothing is scraped that %s selects", rule.Alert, h.selector)
	}
	now, err := eval(t.Context(), e, then, rule.Expr, then.last)
	require.NoError(t, err, rule.Alert)
	before, err = eval(t.Context(), e, then, rule.Expr, then.last.Add(-time.Duration(rule.For)))
	require.NoError(t, err, rule.Alert)
	return now, before
}

var templateLabel = regexp.MustCompile(`\$labels\.(\w+)`)

// checkAlerts holds every alert against what a healthy process shows, and against the state that
// must raise it.
func checkAlerts(t *testing.T, e *promql.Engine, r *recorded) {
	t.Helper()
	seen, healthy := map[string]bool{}, r.stretched(past)
	for _, rule := range alerts(t) {
		require.False(t, seen[rule.Alert], "%s is there twice", rule.Alert)
		seen[rule.Alert] = true
		for _, wrong := range misfits(r, rule.Expr) {
			t.Errorf("%s: %s", rule.Alert, wrong)
		}
		now, _ := raised(t, e, healthy, rule, nil)
		require.Empty(t, now, "%s is raised by a healthy process", rule.Alert)
		if quiet := quiets()[rule.Alert]; quiet != nil {
			now, _ = raised(t, e, healthy, rule, quiet)
			require.Empty(t, now, "%s is raised by what is no trouble", rule.Alert)
		}
		require.NotEmpty(t, raisers()[rule.Alert], "nothing is known that raises %s", rule.Alert)
		if slices.Contains(quietInAPause(), rule.Alert) {
			now, _ = raised(t, e, healthy, rule, append(raisers()[rule.Alert], is(`millrace_route_paused_seconds`, 600), is(`millrace_promotion_route_paused`, 1)))
			require.Empty(t, now, "%s is raised for a paused route", rule.Alert)
			now, _ = raised(t, e, healthy, rule, append(raisers()[rule.Alert], is(`millrace_route_paused_seconds{route="promotion.started"}`, 600)))
			require.NotEmpty(t, now, "the pause of another route silences %s", rule.Alert)
		}
		for _, what := range [][]happening{raisers()[rule.Alert], alsoRaise()[rule.Alert]} {
			if what == nil {
				continue
			}
			now, before := raised(t, e, healthy, rule, what)
			require.NotEmpty(t, now, "%s is not raised", rule.Alert)
			require.NotEmpty(t, before, "%s is not raised for its whole time", rule.Alert)
		}
		now, _ = raised(t, e, healthy, rule, raisers()[rule.Alert])
		for _, text := range rule.Annotations {
			for _, name := range templateLabel.FindAllStringSubmatch(text, -1) {
				require.True(t, now[0].Metric.Has(name[1]), "%s tells the label %s, which its result doesn't have", rule.Alert, name[1])
			}
		}
	}
	for name := range raisers() {
		require.True(t, seen[name], "no alert %s", name)
	}
}

// The rules name no type of promotions, because a further one is a file and a line of Go.
func TestAPauseSilencesTheAlertsOfAFurtherType(t *testing.T) {
	t.Parallel()
	e, at := newEngine(t), time.Unix(1_800_000_000, 0)
	answer := func(rule rulefmt.Rule, paused float64) promql.Vector {
		r := newRecorded()
		for text, v := range map[string]float64{
			`{__name__="millrace_promotion_overdue_seconds",type="CASHBACK"}`:                8000,
			`{__name__="millrace_promotion_oldest_unpaid_seconds",type="CASHBACK"}`:          8000,
			`{__name__="millrace_promotion_attempts_total",type="CASHBACK",state="SUCCESS"}`: 7,
			`{__name__="millrace_promotion_route_paused",type="CASHBACK"}`:                   paused,
			`{__name__="millrace_route_paused_seconds",route="promotion.cashback.stream"}`:   600 * paused,
		} {
			l, err := parser.ParseMetric(text)
			require.NoError(t, err)
			r.add(l, at, v)
		}
		now, err := eval(t.Context(), e, r.stretched(past), rule.Expr, at)
		require.NoError(t, err, rule.Alert)
		return now
	}
	for _, rule := range alerts(t) {
		if rule.Alert == "MillraceNothingIsPaid" || rule.Alert == "MillraceOldestUnpaidTooOld" {
			require.NotEmpty(t, answer(rule, 0), rule.Alert)
			require.Empty(t, answer(rule, 1), "%s is raised while the routes of its type are paused", rule.Alert)
		}
	}
}

const runbookURL = "https://github.com/millrace-io/millrace/blob/main/configs/RUNBOOK.md#"

// incomplete returns what an alert lacks for the person who is woken by it.
func incomplete(rule rulefmt.Rule, runbook map[string]string) []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, rule.Alert+": "+fmt.Sprintf(format, args...)) }
	if rule.For == 0 {
		say("no for")
	}
	if s := rule.Labels["severity"]; s != "critical" && s != "warning" {
		say("severity must be critical or warning, is %q", s)
	}
	for _, name := range []string{"summary", "description"} {
		if rule.Annotations[name] == "" {
			say("no %s", name)
		}
	}
	anchor, ours := strings.CutPrefix(rule.Annotations["runbook_url"], runbookURL)
	paragraph := runbook[anchor]
	switch {
	case !ours:
		say("runbook_url is not in configs/RUNBOOK.md")
	case paragraph == "":
		say("the runbook has no heading #%s", anchor)
	case anchor != strings.ToLower(rule.Alert):
		say("the runbook_url is that of another alert")
	}
	for _, part := range []string{"**Means.**", "**Look first.**", "**Ends.**"} {
		if paragraph != "" && !strings.Contains(paragraph, part) {
			say("the runbook says nothing under %s", part)
		}
	}
	return wrong
}

// runbook returns the texts under the headings of alerts, by their anchors.
func runbook(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../configs/RUNBOOK.md")
	require.NoError(t, err)
	paragraphs := map[string]string{}
	anchor := ""
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "### "); ok {
			anchor = strings.ToLower(strings.TrimSpace(heading))
			require.Empty(t, paragraphs[anchor], "two headings #%s", anchor)
		} else if strings.HasPrefix(line, "#") {
			anchor = ""
		} else if anchor != "" {
			paragraphs[anchor] += line
		}
	}
	return paragraphs
}

func TestAlertsTellAPersonWhatToDo(t *testing.T) {
	t.Parallel()
	book := runbook(t)
	known := map[string]bool{}
	for _, rule := range alerts(t) {
		known[strings.ToLower(rule.Alert)] = true
		for _, wrong := range incomplete(rule, book) {
			t.Error(wrong)
		}
	}
	for anchor := range book {
		require.True(t, known[anchor], "the runbook has a paragraph for #%s, which is no alert", anchor)
	}

	bare := rulefmt.Rule{Alert: "MillraceNew", Annotations: map[string]string{"runbook_url": runbookURL + "millracenew"}}
	require.Len(t, incomplete(bare, book), 5)
	require.Contains(t, incomplete(bare, book), "MillraceNew: the runbook has no heading #millracenew")
	require.Contains(t, incomplete(bare, map[string]string{"millracenew": "**Means.** **Ends.**"}), "MillraceNew: the runbook says nothing under **Look first.**")
}
