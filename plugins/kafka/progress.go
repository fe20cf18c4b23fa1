package kafka

import (
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
)

// progress is a commit of a partition: everything before base is done, and so is what done names.
//
// A Kafka commit can't name done records beyond its offset. A claim may end with acknowledged
// records that an earlier record holds back, because that one is not due, or its handler did not
// finish in time. So the claim writes the acknowledged ones as a bitmap into the commit's metadata
// string, and the partition's next owner does not run them again. The string also names the id of
// the topic, because a topic that was deleted and created again has the same name, but another log.
// Other consumers ignore the string and only reprocess these records. A commit without it (a reset
// by a tool) is used as it is.
type progress struct {
	base  int64
	topic topicID // zero: not known
	done  doneBefore

	owned  bool          // a claim has the partition, or it died
	deaths int           // of owners in a row before this one, while owned
	counts map[int64]int // by offset: deaths while the record ran
}

const (
	progressPrefix = "millrace1"
	progressTopic  = "topic="
	progressOwned  = "owned="
	progressCounts = "deaths="
	progressDone   = "done="
	// progressMax keeps the string under the broker's default offset.metadata.max.bytes (4096);
	// records further away are simply run again.
	progressMax = 2800
)

// encodeProgress returns the metadata of a commit of p; empty when it has nothing to say. p.done is
// beyond p.base.
func encodeProgress(p progress) string {
	var bits []byte
	for _, o := range p.done {
		i := o - p.base
		if i < 0 || i >= 8*progressMax {
			continue
		}
		for int64(len(bits)) <= i/8 {
			bits = append(bits, 0)
		}
		bits[i/8] |= 1 << (i % 8)
	}
	text := progressPrefix
	if p.topic != (topicID{}) {
		text += " " + progressTopic + p.topic.String()
	}
	if p.owned {
		text += " " + progressOwned + strconv.Itoa(p.deaths)
	}
	if len(p.counts) > 0 {
		text += " " + progressCounts + encodeCounts(p.counts)
	}
	if len(bits) > 0 {
		text += " " + progressDone + base64.RawStdEncoding.EncodeToString(bits)
	}
	if text == progressPrefix {
		return ""
	}
	return text
}

// decodeProgress returns the commit at base with what its metadata says: nothing when that is not
// ours. Its done offsets are ascending.
func decodeProgress(base int64, metadata string) progress {
	p := progress{base: base}
	fields := strings.Split(metadata, " ")
	if fields[0] != progressPrefix {
		return p
	}
	for _, field := range fields[1:] {
		if text, is := strings.CutPrefix(field, progressTopic); is {
			p.topic = parseTopicID(text)
		}
		if text, is := strings.CutPrefix(field, progressOwned); is {
			deaths, err := strconv.Atoi(text)
			p.owned, p.deaths = err == nil && deaths >= 0, max(deaths, 0)
		}
		if text, is := strings.CutPrefix(field, progressCounts); is {
			p.counts = decodeCounts(text)
		}
		if text, is := strings.CutPrefix(field, progressDone); is {
			p.done = decodeDone(base, text)
		}
	}
	return p
}

func decodeDone(base int64, text string) (done doneBefore) {
	bits, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	for i, b := range bits {
		for j := range 8 {
			if b&(1<<j) != 0 {
				done = append(done, base+int64(8*i+j))
			}
		}
	}
	return done
}

// doneBefore is what a former owner of the partition has done beyond its commit, ascending.
type doneBefore []int64

func (d doneBefore) has(offset int64) bool {
	_, found := slices.BinarySearch(d, offset)
	return found
}

// between returns the part from begin on, and before end.
func (d doneBefore) between(begin, end int64) doneBefore {
	from, _ := slices.BinarySearch(d, begin)
	to, _ := slices.BinarySearch(d, max(begin, end))
	return d[from:to]
}

// after returns the part beyond offset.
func (d doneBefore) after(offset int64) []int64 {
	i, found := slices.BinarySearch(d, offset)
	if found {
		i++
	}
	return d[i:]
}
