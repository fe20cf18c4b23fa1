// Package wakeup handles the entries of the streams ENTRY and DISPATCH: a user was promoted.
package wakeup

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
)

// User is one entry.
type User struct {
	ID       string `json:"userId"`
	Event    string `json:"eventId"`
	Instance string `json:"instanceId"` // had the connection of the user at the promotion
}

func parse(payload []byte) (u User, err error) {
	if err = json.Unmarshal(payload, &u); err == nil && (!room.ValidUser(u.ID) || !room.ValidEvent(u.Event)) {
		err = errors.New("userId or eventId is not valid")
	}
	if err != nil {
		return u, pipeline.WithClass(pipeline.Permanent(fmt.Errorf("entry of a promoted user: %w", err)), pipeline.ClassUndecodable)
	}
	return u, nil
}

// Handle calls each once per event of a batch, at the same time. An error fails the messages of its
// event alone.
func Handle(msgs []*message.Message, each func(event string, users []User) error) []pipeline.BatchResult {
	results := make([]pipeline.BatchResult, len(msgs))
	users, at := map[string][]User{}, map[string][]int{}
	for i, msg := range msgs {
		u, err := parse(msg.Payload)
		if err != nil {
			results[i].Err = err
			continue
		}
		users[u.Event], at[u.Event] = append(users[u.Event], u), append(at[u.Event], i)
	}
	var events sync.WaitGroup
	for event, list := range users {
		events.Go(func() {
			err := each(event, list)
			for _, i := range at[event] {
				results[i].Err = err
			}
		})
	}
	events.Wait()
	return results
}
