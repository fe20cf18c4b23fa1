package e2e

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// `make pictures` sets picturesVariable, and then the pictures of the documentation are written.
const (
	picturesVariable = "MILLRACE_PICTURES"
	picturesFolder   = "../docs/images/console"
	pictureWidth     = 1200
	pictureHeight    = 980      // at most
	pictureLimit     = 80 << 10 // bytes
)

// hasPictures takes the pictures of the documentation, in light and in dark colours. Their pixels differ between
// machines, so a run without picturesVariable only checks that they can be taken.
func hasPictures(t *testing.T, b *browser, s *shop) {
	s.far.set(func(f *farSide) { f.broken = true })
	s.orders("mercury", 1)
	one := "/effects/effect?" + url.Values{"kind": {"invoice"}, "group": {"mercury"}, "id": {"1"}}.Encode()
	p := b.open(t, s.url+one, pictureWidth)
	p.reads("#effect td", "the database of invoices is down")
	s.far.set(func(f *farSide) { f.broken, f.refusing = false, true })
	p.reads("#effect dd.ok", "success")
	s.invoiced("acme", 101, 102, 103, 104, 105, 106, 107)
	s.invoiced("venus", 1, 2, 3)
	out, code := s.command("", "once", "pause", "--kind", "invoice", "--group", "venus", "--why", "they change their bank")
	require.Zero(t, code, out)
	s.orders("venus", 4, 5)
	s.send("orders", `{"order":101}`, `{"order":102}`, `{"order":103}`)
	s.send("invoices", `{"number":"7"}`)
	p.follows(menu("Dead letters"), "Dead letters")
	p.reads("#groups td", "answered 403 Forbidden")
	p.reads("#groups td", "customer")
	group := value[string](p, `[...document.querySelectorAll("#groups td a")].find((a) => a.innerText.includes("403")).search`)

	for name, page := range map[string]struct {
		address string
		ready   func()
	}{
		"pipeline": {"/", func() {
			p.reads("#graph .step.warn .why", "dead letters wait for a person")
			p.reaches("a rate of each route", `[...document.querySelectorAll("#routes td:nth-child(4)")].every((rate) => rate.innerText !== "unknown")`)
		}},
		"effects":      {"/effects", func() { p.reads("#groups td.warn", "paused") }},
		"effect":       {one, func() { p.reads("#effect dd.ok", "success") }},
		"dead-letters": {"/dead-letters", func() { p.reads("#groups td", "answered 403 Forbidden") }},
		"replay":       {"/actions/deadletter/replay" + group, func() { p.submits("Preview"); p.reads("main", "would be replayed") }},
	} {
		require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(pictureWidth, pictureHeight), chromedp.Navigate(s.url+page.address)))
		page.ready()
		p.rests()
		value[bool](p, `document.querySelector("#read button")?.remove(), scrollTo(0, 0), true`)
		height := min(pictureHeight, value[int64](p, `Math.ceil(document.querySelector("main").getBoundingClientRect().bottom)`))
		for scheme, isRight := range map[string]func(brightness uint32) bool{
			"light": func(b uint32) bool { return b > 0xf000 }, "dark": func(b uint32) bool { return b < 0x3000 },
		} {
			require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(pictureWidth, height), colours(scheme)))
			taken, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			require.NoError(t, err)
			drawn, err := png.Decode(bytes.NewReader(taken))
			require.NoError(t, err)
			require.Equal(t, image.Pt(pictureWidth, int(height)), drawn.Bounds().Size(), name)
			_, green, _, _ := drawn.At(pictureWidth-2, int(height)-2).RGBA()
			require.True(t, isRight(green), "%s is not %s", name, scheme)
			small := paletted(t, drawn)
			require.LessOrEqual(t, len(small), pictureLimit, "%s, %s: bytes", name, scheme)
			file := filepath.Join(picturesFolder, fmt.Sprintf("%s-%s.png", name, scheme))
			if os.Getenv(picturesVariable) != "" {
				require.NoError(t, os.WriteFile(file, small, 0o644)) //nolint:gosec // everybody may see it
			}
			require.FileExists(t, file, "make pictures writes it")
		}
	}
}

// paletted returns a picture with at most 256 colours: one for each part of the space of colours that the picture
// has pixels in, so that none that is rare is lost, and then those that it has most of.
func paletted(t *testing.T, drawn image.Image) []byte {
	t.Helper()
	bounds := drawn.Bounds()
	counts := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(drawn.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	common := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	var first, more []color.RGBA
	parts := map[[3]uint8]bool{}
	for _, c := range common {
		part := [3]uint8{c.R >> 5, c.G >> 5, c.B >> 5}
		if parts[part] {
			more = append(more, c)
		} else {
			parts[part] = true
			first = append(first, c)
		}
	}
	var palette color.Palette
	for _, c := range append(first, more...) {
		if len(palette) < 256 {
			palette = append(palette, c)
		}
	}
	nearest := map[color.RGBA]uint8{}
	for c := range counts {
		nearest[c] = uint8(palette.Index(c)) //nolint:gosec // a palette has at most 256 colours
	}
	small := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			small.SetColorIndex(x, y, nearest[at(x, y)])
		}
	}
	var b bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small))
	return b.Bytes()
}
