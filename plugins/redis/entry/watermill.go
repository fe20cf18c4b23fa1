package entry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
)

// watermillUUID is the field of watermill-redisstream that has the id. The library is not imported for
// it, because each module with the plugin redis would then require it and four others.
const watermillUUID = "_watermill_message_uuid"

// decodeWatermill decodes an entry of watermill-redisstream. Undecodable metadata is kept raw.
func decodeWatermill(m goredis.XMessage) (*message.Message, error) {
	uuid, ok := stringField(m.Values, watermillUUID)
	if !ok {
		return malformed(m)
	}
	payload, _ := stringField(m.Values, "payload")
	encoded, _ := stringField(m.Values, "metadata")
	if uuid == "" {
		uuid = m.ID
	}
	msg := message.NewMessage(uuid, []byte(payload))
	metadata, err := decodeMetadata(encoded)
	if err != nil {
		msg.Metadata.Set(MetaRawHeaders, clip(strings.ToValidUTF8(encoded, "\uFFFD")))
		return msg, nil //nolint:nilerr // the rest of the message is good
	}
	for k, v := range metadata {
		setHeader(msg, k, v)
	}
	return msg, nil
}

var errCutOff = errors.New("it ends in the middle")

// decodeMetadata decodes a map of strings in MessagePack. The decoder that watermill-redisstream uses
// takes 1 MiB for a string that only says that it is long. Any client can write an entry, so here a
// length is compared with what is there.
func decodeMetadata(text string) (message.Metadata, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // the marshaler writes no empty map
	}
	code, text := text[0], text[1:]
	var n uint32
	var err error
	switch {
	case code == 0xc0: // nil
	case code&0xf0 == 0x80:
		n = uint32(code & 0x0f)
	case code == 0xde:
		n, text, err = number(text, 2)
	case code == 0xdf:
		n, text, err = number(text, 4)
	default:
		err = fmt.Errorf("code %#x is no map", code)
	}
	metadata := message.Metadata{}
	for ; n > 0 && err == nil; n-- {
		var k, v string
		if k, text, err = stringOf(text); err == nil {
			v, text, err = stringOf(text)
		}
		metadata[k] = v
	}
	return metadata, err
}

// stringOf decodes a string, bytes or nil, and returns what follows.
func stringOf(text string) (s, rest string, err error) {
	if text == "" {
		return "", "", errCutOff
	}
	code, text := text[0], text[1:]
	var n uint32
	switch {
	case code == 0xc0: // nil
	case code&0xe0 == 0xa0:
		n = uint32(code & 0x1f)
	case code == 0xd9, code == 0xc4:
		n, text, err = number(text, 1)
	case code == 0xda, code == 0xc5:
		n, text, err = number(text, 2)
	case code == 0xdb, code == 0xc6:
		n, text, err = number(text, 4)
	default:
		err = fmt.Errorf("code %#x is no string", code)
	}
	switch {
	case err != nil:
		return "", "", err
	case uint64(n) > uint64(len(text)):
		return "", "", errCutOff
	}
	return text[:n], text[n:], nil
}

// number decodes a number of that many bytes, and returns what follows.
func number(text string, size int) (n uint32, rest string, err error) {
	if len(text) < size {
		return 0, "", errCutOff
	}
	var b [4]byte
	copy(b[len(b)-size:], text)
	return binary.BigEndian.Uint32(b[:]), text[size:], nil
}
