package deadletter_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Without a store, --watch shows what has come into the streams since, and not the copy of its start.
func TestAWatchedListOfStreamsIsReadAgain(t *testing.T) {
	redistest.Both(t, func(t *testing.T, s redistest.Server) {
		client := s.Client(t)
		stream := redistest.Prefix(t, client)
		own := redis.New()
		own.Settings().(*redis.Config).Addrs = []string{s.Addr}
		pipelinetest.Start(t, own)
		dead := own.CappedSink(stream+"-dead", 100, 1<<20)
		fail := func(class string) {
			t.Helper()
			require.NoError(t, dead.Publish(t.Context(), pipeline.DeadLetter{
				Payload: []byte(class), Class: class, Error: "no such gate", Handler: "jobs", SourceKind: poll.Kind, Source: stream, Origin: stream + "@" + class,
			}.Message()))
		}
		fail("first_class")
		var out, said pipelinetest.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan int, 1)
		go func() {
			k, r := kafka.New(), redis.New()
			d := deadletter.New(k, r).StoreIn(sqldb.Databases{})
			ended <- app.Main(ctx, app.Options{
				Name: "millrace", Plugins: []pipeline.Plugin{r, k, d, jobs{stream: stream, redis: r, dead: d}}, Args: []string{"deadletter", "list", "--watch"},
				Environ: []string{"MILLRACE__PLUGINS__KAFKA__ENABLED=false", "MILLRACE__PLUGINS__REDIS__ADDRS=" + s.Addr}, Stdout: &out, Stderr: &said,
			})
		}()
		has := func(class string) func() bool { return func() bool { return strings.Contains(out.String(), class) } }
		require.Eventually(t, has("first_class"), time.Minute, 10*time.Millisecond, "%s", &said)
		fail("second_class")
		require.Eventually(t, has("second_class"), 20*time.Second, 10*time.Millisecond)
		cancel()
		require.Zero(t, <-ended, "%s", &said)
		require.EqualValues(t, 2, client.XLen(t.Context(), stream+"-dead").Val())
	})
}
