package kafka

import (
	"encoding/base64"
	"slices"
	"strings"
)

// A commit says that everything before its offset is done. It can't name done records behind it. A
// claim may end with acknowledged records that an earlier record holds back. That one is not due,
// or its handler did not finish in time. The claim writes the acknowledged ones as a bitmap into
// the commit's metadata string, and the partition's next owner does not run them again. Other
// consumers ignore the string and only reprocess these records. After a commit without it (a reset
// by a tool) they are reprocessed too.
const (
	progressPrefix = "millrace1 "
	// progressMax keeps the string under the broker's default offset.metadata.max.bytes (4096);
	// records further away are simply run again.
	progressMax = 2900
)

// encodeProgress writes which of offsets (all > base) are done.
func encodeProgress(base int64, offsets []int64) string {
	var bits []byte
	for _, o := range offsets {
		i := o - base
		if i < 0 || i >= 8*progressMax {
			continue
		}
		for int64(len(bits)) <= i/8 {
			bits = append(bits, 0)
		}
		bits[i/8] |= 1 << (i % 8)
	}
	if len(bits) == 0 {
		return ""
	}
	return progressPrefix + base64.RawStdEncoding.EncodeToString(bits)
}

// decodeProgress returns the offsets that metadata calls done, ascending; none when it is not ours.
func decodeProgress(base int64, metadata string) []int64 {
	text, ours := strings.CutPrefix(metadata, progressPrefix)
	if !ours {
		return nil
	}
	bits, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	var offsets []int64
	for i, b := range bits {
		for j := range 8 {
			if b&(1<<j) != 0 {
				offsets = append(offsets, base+int64(8*i+j))
			}
		}
	}
	return offsets
}

// doneBefore is what a former owner of the partition has done beyond its commit, ascending.
type doneBefore []int64

func (d doneBefore) has(offset int64) bool {
	_, found := slices.BinarySearch(d, offset)
	return found
}

// after returns the part beyond offset.
func (d doneBefore) after(offset int64) []int64 {
	i, found := slices.BinarySearch(d, offset)
	if found {
		i++
	}
	return d[i:]
}
