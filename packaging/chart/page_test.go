package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// blocks returns the code of one language on a page, without the indent of a list.
func blocks(page, language string) []string {
	var list []string
	for _, match := range regexp.MustCompile("(?s)( *)```"+language+"\n(.*?)\n *```").FindAllStringSubmatch(page, -1) {
		list = append(list, strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:]+"\n")
	}
	return list
}

// The values of the page make a release that keeps the rules, and its commands exist.
func TestThePageForKubernetes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/kubernetes.md")
	require.NoError(t, err)
	page := string(text)

	parts := blocks(page, "yaml")
	require.Len(t, parts, 2)
	v := map[string]any{}
	for _, part := range parts {
		overlay(v, values(t, part))
		docs := documents(t, v)
		o, err := decode(docs)
		require.NoError(t, err)
		require.Empty(t, problems(t, o))
		for name, settings := range settingsOf(t, docs) {
			code, out := validate(t, settings)
			require.Zero(t, code, "%s: %s", name, out)
		}
	}
	require.Empty(t, findings(packedChart(t), v))

	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	binary, err := millrace()
	require.NoError(t, err)
	asked := 0
	for _, line := range strings.Split(strings.Join(blocks(page, "sh"), ""), "\n") {
		command := line
		if _, inside, found := strings.Cut(line, " -- "); found {
			command = inside
		}
		switch words := strings.Fields(command); {
		case line == "":
		case words[0] == "make":
			require.Contains(t, string(makefile), "\n"+words[1]+":")
		case words[0] == "millrace":
			out, err := exec.CommandContext(t.Context(), binary, words[1], "--help").CombinedOutput()
			require.NoError(t, err, "%s\n%s", line, out)
			for _, word := range words {
				if strings.HasPrefix(word, "--") {
					require.Contains(t, string(out), word, line)
				}
			}
			asked++
		default:
			require.Regexp(t, `^(helm|kubectl|skopeo) `, line)
		}
	}
	require.Equal(t, 4, asked)

	defaults := exampleValues(t, "millrace/values.yaml")
	named := regexp.MustCompile("`((?:secrets|pod|migration|monitoring|networkPolicy|topologySpread)\\.[A-Za-z.]+)(?:: [A-Za-z]+)?`").FindAllStringSubmatch(page, -1)
	require.Greater(t, len(named), 8)
	written, err := yaml.Marshal(defaults)
	require.NoError(t, err)
	for _, match := range named {
		path := strings.Split(match[1], ".")
		require.True(t, has(t, string(written), path), "the page names the value %s", match[1])
	}
	require.False(t, has(t, string(written), []string{"pod", "volume"}))

	for _, object := range regexp.MustCompile(`(?:deployment/|job/|Service .)(millrace-[a-z]+)`).FindAllStringSubmatch(page, -1) {
		overlay(v, values(t, "roles: {gateway: {enabled: true}, broker: {enabled: true}}"))
		require.Contains(t, strings.Join(documents(t, v), ""), "\n  name: "+object[1]+"\n")
	}
}

// has reports whether settings or values have a key.
func has(t *testing.T, text string, path []string) bool {
	section, isSection := setting(t, text, path[:len(path)-1]...).(map[string]any)
	_, there := section[path[len(path)-1]]
	return isSection && there
}

func TestExamplesAreForReaders(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Regexp(t, `^# [A-Z].*[.:,]`, string(text), "%s: begins with what it is for", filepath.Base(file))
	}
}
