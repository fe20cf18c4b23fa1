package wire_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/wire"
)

// misplaced returns the plugins that stand before one that their constructor was given: their
// services would start without it.
func misplaced(plugins []pipeline.Plugin) (all []string) {
	for i, p := range plugins {
		holds := reflect.Indirect(reflect.ValueOf(p))
		for f := range holds.NumField() {
			field := holds.Field(f)
			if field.Kind() == reflect.Interface {
				field = field.Elem()
			}
			if field.Kind() != reflect.Pointer {
				continue
			}
			for _, later := range plugins[i+1:] {
				if v := reflect.ValueOf(later); v.Kind() == reflect.Pointer && v.Pointer() == field.Pointer() {
					all = append(all, fmt.Sprintf("%s stands before %s, which it uses", p.Name(), later.Name()))
				}
			}
		}
	}
	return all
}

// Wire does not see the order of the fields of Service.
func TestPluginsStandAfterWhatTheyUse(t *testing.T) {
	t.Parallel()
	plugins := wire.New().Plugins()
	require.Empty(t, misplaced(plugins))
	slices.Reverse(plugins)
	wrong := misplaced(plugins)
	require.Contains(t, wrong, "promotion stands before kafka, which it uses")
	require.Contains(t, wrong, "deadletter stands before kafka, which it uses")
}
