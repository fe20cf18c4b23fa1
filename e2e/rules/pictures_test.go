package rules_test

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	picturesFolder = "docs/images/console/"
	pictureLimit   = 80 << 10 // bytes
)

// pictureProblems returns what is wrong with the pictures of the console, by their path from the top folder. Each
// is there in light and in dark colours, is small, and the README of the plugin shows both. The main README leads to
// each page.
func pictureProblems(files map[string][]byte, main, plugin string) []string {
	var wrong []string
	for name, text := range files {
		if len(text) > pictureLimit {
			wrong = append(wrong, fmt.Sprintf("%s has %d bytes, more than %d", name, len(text), pictureLimit))
		}
		if _, err := png.DecodeConfig(bytes.NewReader(text)); err != nil {
			wrong = append(wrong, name+" is no PNG")
		}
		page, scheme := name, ""
		for _, one := range []string{"-light.png", "-dark.png"} {
			if cut, ok := strings.CutSuffix(name, one); ok {
				page, scheme = cut, one
			}
		}
		other := page + map[string]string{"-light.png": "-dark.png", "-dark.png": "-light.png"}[scheme]
		if _, ok := files[other]; !ok || scheme == "" {
			wrong = append(wrong, name+" is not there in light and in dark colours")
		}
		if !strings.Contains(plugin, "](../../"+name+")") {
			wrong = append(wrong, "plugins/console/README.md does not show "+name)
		}
		if scheme == "-light.png" && !strings.Contains(main, name) {
			wrong = append(wrong, "README.md does not lead to "+name)
		}
	}
	slices.Sort(wrong)
	return wrong
}

func TestThePicturesOfTheConsoleAreShown(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob(filepath.Join(root(t), picturesFolder, "*"))
	require.NoError(t, err)
	require.Len(t, found, 10, "five pages in light and in dark colours")
	files := map[string][]byte{}
	for _, path := range found {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		files[picturesFolder+filepath.Base(path)] = text
	}
	markdown := pages(t)
	require.Empty(t, pictureProblems(files, markdown["README.md"], markdown["plugins/console/README.md"]))

	good, light := files[picturesFolder+"pipeline-light.png"], picturesFolder+"a-light.png"
	shown := "![a](../../" + light + ")"
	require.Empty(t, pictureProblems(map[string][]byte{light: good, picturesFolder + "a-dark.png": good}, light, shown+" ![a](../../"+picturesFolder+"a-dark.png)"))
	require.Equal(t, []string{
		"README.md does not lead to " + light, light + " has 81921 bytes, more than 81920", light + " is no PNG",
		light + " is not there in light and in dark colours", "plugins/console/README.md does not show " + light,
	}, pictureProblems(map[string][]byte{light: make([]byte, pictureLimit+1)}, "", ""))
}
