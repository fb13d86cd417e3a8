package play

import (
	"fmt"
	"strconv"
)

var errorNames = map[int16]string{
	1:  "OFFSET_OUT_OF_RANGE",
	3:  "UNKNOWN_TOPIC_OR_PARTITION",
	10: "MESSAGE_TOO_LARGE",
	17: "INVALID_TOPIC_EXCEPTION",
	36: "TOPIC_ALREADY_EXISTS",
	37: "INVALID_PARTITIONS",
	40: "INVALID_CONFIG",
	68: "NON_EMPTY_GROUP",
	69: "GROUP_ID_NOT_FOUND",
}

// ErrorName is Kafka's name of an error that the scenario is to see, or the number of another.
func ErrorName(code int16) string {
	if name, ok := errorNames[code]; ok {
		return name
	}
	return strconv.Itoa(int(code))
}

// Refused is what a step saw whose call was to end in the error `want`. `name` finds Kafka's name in what the library made of it, or "".
func Refused(err error, want string, name func(error) string) (Saw, error) {
	if err == nil {
		return nil, fmt.Errorf("no error, %s was to come", want)
	}
	if found := name(err); found != want {
		return nil, fmt.Errorf("%s: %w", found, err)
	}
	return Saw{"error": want}, nil
}
