package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// broker is the plugin kafka of a binary whose topics are in memory.
type broker struct {
	Kafka
	calls  map[string][]int // the number of messages of each publish, by topic
	msgs   map[string][]*message.Message
	refuse func(topic string, call int) error // nil: nothing is refused
}

func (*broker) Name() string                      { return "kafka" }
func (*broker) Register(*pipeline.Registry) error { return nil }
func (b *broker) Sink(topic string) pipeline.Sink { return memoryTopic{b, topic} }

type memoryTopic struct {
	b    *broker
	name string
}

func (t memoryTopic) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "kafka", Name: t.name}
}

func (t memoryTopic) Publish(_ context.Context, msgs ...*message.Message) error {
	t.b.calls[t.name] = append(t.b.calls[t.name], len(msgs))
	if t.b.refuse != nil {
		if err := t.b.refuse(t.name, len(t.b.calls[t.name])); err != nil {
			return err
		}
	}
	t.b.msgs[t.name] = append(t.b.msgs[t.name], msgs...)
	return nil
}

// campaigns is a plugin with the commands alone.
type campaigns struct{ Env }

func (campaigns) Name() string                            { return "promotion" }
func (campaigns) Register(*pipeline.Registry) error       { return nil }
func (p campaigns) Commands(h *app.Host) []*cobra.Command { return Commands(h, p.Env) }

// noResources are those of a command that opens nothing but topics.
type noResources struct{ campaign.Resources }

func (noResources) Register(*pipeline.Registry, campaign.Services) error { return nil }

// publish runs `campaign publish --promotion 12` with further arguments.
func publish(t *testing.T, b *broker, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	b.calls, b.msgs = map[string][]int{}, map[string][]*message.Message{}
	var out, errs bytes.Buffer
	code = app.Main(t.Context(), app.Options{
		Name: "millrace", Plugins: []pipeline.Plugin{b, campaigns{Env{Env: campaign.Env{Resources: noResources{}}, Kafka: b}}},
		Args: append([]string{"campaign", "publish", "--promotion", "12"}, args...), Environ: []string{}, Stdout: &out, Stderr: &errs,
	})
	return code, out.String(), errs.String()
}

// started returns the announced sizes by type.
func (b *broker) started(t *testing.T) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	for _, m := range b.msgs[promotiontype.StartedTopic] {
		var s promotiontype.Started
		require.NoError(t, json.Unmarshal(m.Payload, &s))
		require.EqualValues(t, 12, s.PromotionID)
		require.Equal(t, "12", m.Metadata.Get(pipeline.MetaKey))
		sizes[s.PromotionType] = s.TotalCount
	}
	return sizes
}

// targetsOf returns the ids of the published targets of a type.
func (b *broker) targetsOf(t *testing.T, name string, summary int64) (ids []int64) {
	t.Helper()
	of, ok := promotiontype.ByName(name)
	require.True(t, ok)
	for _, m := range b.msgs[of.PublishTopic()] {
		p, err := of.Decode(m.Payload)
		require.NoError(t, err)
		require.Equal(t, []int64{12, summary}, []int64{p.Promotion, p.Summary})
		require.Equal(t, strconv.FormatInt(p.Target, 10), m.Metadata.Get(pipeline.MetaKey))
		ids = append(ids, p.Target)
	}
	return ids
}

func TestPublishACampaign(t *testing.T) {
	t.Parallel()
	b := &broker{}
	code, out, errs := publish(t, b, "--targets", "3", "--summary", "5")
	require.Equal(t, app.ExitOK, code, errs)
	sizes := map[string]int64{}
	for _, name := range promotiontype.Names() {
		sizes[name] = 3
		require.Equal(t, []int64{1, 2, 3}, b.targetsOf(t, name, 5))
	}
	require.Equal(t, sizes, b.started(t))
	require.Regexp(t, fmt.Sprintf(`^Promotion 12: %d records published in \d+\.\d s\.\n$`, 3*len(sizes)), out)

	n := 2*publishBatch + 1
	code, out, errs = publish(t, b, "--targets", strconv.Itoa(n), "--type", "POINT", "--no-started", "--json")
	require.Equal(t, app.ExitOK, code, errs)
	var report struct{ Promotion, Published int64 }
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.EqualValues(t, 12, report.Promotion)
	require.EqualValues(t, n, report.Published)
	require.Equal(t, map[string][]int{"campaign-promotion-point-publish": {publishBatch, publishBatch, 1}}, b.calls)
	require.Len(t, slices.Compact(b.targetsOf(t, "POINT", 1)), n)
}

// The second run publishes the same records, so one that failed is repeated without harm.
func TestAPublishThatFails(t *testing.T) {
	t.Parallel()
	const point = "campaign-promotion-point-publish"
	n := 2*publishBatch + 1
	args := []string{"--targets", strconv.Itoa(n), "--type", "POINT", "--seed", "7"}
	lost := errors.New("connection lost")
	b := &broker{refuse: func(topic string, call int) error {
		if topic == point && call == 2 {
			return lost
		}
		return nil
	}}
	code, out, errs := publish(t, b, args...)
	require.Equal(t, app.ExitBad, code)
	require.Empty(t, out)
	require.Contains(t, errs, "after 500 of 1,001 records (publishing them again is harmless): publish to "+point+": connection lost")
	require.Len(t, b.msgs[point], publishBatch)
	first := b.msgs[point]

	b.refuse = nil
	code, _, errs = publish(t, b, args...)
	require.Equal(t, app.ExitOK, code, errs)
	require.Len(t, b.msgs[point], n)
	for i, m := range first {
		require.Equal(t, string(m.Payload), string(b.msgs[point][i].Payload))
	}

	b.refuse = func(string, int) error { return lost }
	code, _, errs = publish(t, b, args...)
	require.Equal(t, app.ExitBad, code)
	require.Contains(t, errs, "publish to "+promotiontype.StartedTopic+": connection lost")
	require.Equal(t, map[string][]int{promotiontype.StartedTopic: {1}}, b.calls, "no record of what was not announced")
}

func TestPublishAFile(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "targets.csv")
		require.NoError(t, os.WriteFile(path, []byte("promotionType,targetId,amount,voucherId\n"+text), 0o600))
		return path
	}
	b := &broker{}
	code, out, errs := publish(t, b, "--csv", file("POINT,7,500,\nVOUCHER,8,,V-1\nPOINT,007,500,\n"))
	require.Equal(t, app.ExitOK, code, errs)
	require.Contains(t, out, "3 records published")
	require.Contains(t, errs, "lines 2 and 4: 7 and 007 are the same target of POINT, and it is paid once")
	require.Equal(t, map[string]int64{"POINT": 2, "VOUCHER": 1}, b.started(t))
	require.Equal(t, []int64{7, 7}, b.targetsOf(t, "POINT", 1))
	require.Equal(t, []int64{8}, b.targetsOf(t, "VOUCHER", 1))

	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"a wrong line":      {[]string{"--csv", file("POINT,7,500,\nPOINT,8,free,\n")}, "3: amount: must be"},
		"two values":        {[]string{"--csv", file("POINT,7,500,\nPOINT,7,501,\n")}, "delete one of the lines"},
		"no targets":        {[]string{"--csv", file("")}, "has no targets"},
		"no file":           {[]string{"--csv", filepath.Join(t.TempDir(), "none")}, "no such file"},
		"neither":           {nil, "give either --csv or --targets"},
		"both":              {[]string{"--csv", "a", "--targets", "1"}, "give either --csv or --targets"},
		"a negative number": {[]string{"--targets", "-1"}, "--targets must be > 0, got -1"},
		"no summary":        {[]string{"--targets", "1", "--summary", "0"}, "--promotion and --summary must be > 0, got 12 and 0"},
		"no such type":      {[]string{"--targets", "1", "--type", "COIN"}, "--type"},
	} {
		code, _, errs := publish(t, b, tt.args...)
		require.Equal(t, app.ExitUsage, code, "%s: %s", name, errs)
		require.Contains(t, errs, tt.want, name)
		require.Empty(t, b.calls, name)
	}
}
