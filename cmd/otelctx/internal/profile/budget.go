// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxMessages is the maximum number of messages and strings in a file that [CheckFile] checks. Decoding and checking
// one costs up to a few hundred bytes and a few microseconds, but in a file it may take only two bytes. A file of the
// maximum size that otelctx has recorded has fewer.
const maxMessages = 1 << 21

var errTooManyMessages = fmt.Errorf("more than %d messages and strings, which is the most that can be checked", maxMessages)

// tooManyJSON reports whether a JSON text may have more than maxMessages messages and strings.
func tooManyJSON(content []byte) bool {
	return bytes.Count(content, []byte("{"))+bytes.Count(content, []byte(`"`))/2 > maxJSONTokens
}

// maxJSONTokens is maxMessages for JSON, in which the names of members are strings, too.
const maxJSONTokens = 8 * maxMessages

// tooMany reports whether an encoded message of this type contains more than maxMessages messages and strings.
func tooMany(content []byte, message protoreflect.MessageDescriptor) bool {
	left := maxMessages
	countMessages(content, message, &left, protowire.DefaultRecursionLimit)
	return left < 0
}

// countMessages subtracts the number of messages and strings in an encoded message from left. It stops when left is
// negative, or where the encoding is invalid or nested more deeply than depth, which decoding reports.
func countMessages(content []byte, message protoreflect.MessageDescriptor, left *int, depth int) {
	fields := message.Fields()
	for len(content) > 0 && *left >= 0 {
		number, wireType, size := protowire.ConsumeTag(content)
		if size < 0 {
			return
		}
		content = content[size:]
		if wireType != protowire.BytesType {
			if size = protowire.ConsumeFieldValue(number, wireType, content); size < 0 {
				return
			}
			content = content[size:]
			continue
		}
		value, size := protowire.ConsumeBytes(content)
		if size < 0 {
			return
		}
		content = content[size:]
		*left--
		if field := fields.ByNumber(number); field != nil && field.Message() != nil && depth > 0 {
			countMessages(value, field.Message(), left, depth-1)
		}
	}
}
