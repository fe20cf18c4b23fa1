package promotiontype

import (
	"errors"
	"fmt"
)

// Topics of the started event, which all types share.
const (
	StartedTopic     = "campaign-promotion-started"
	StartedDeadTopic = "campaign-promotion-started-dead"
)

// Started is a record of campaign-promotion-started.
type Started struct {
	PromotionID   int64  `json:"promotionId"`
	PromotionType string `json:"promotionType"` // not checked by Validate
	TotalCount    int64  `json:"totalCount"`    // for sizing; may be wrong or 0
}

// Validate reports all wrong fields at once.
func (s Started) Validate() error {
	var total error
	if s.TotalCount < 0 {
		total = fmt.Errorf("totalCount: must be >= 0, got %d", s.TotalCount)
	}
	return errors.Join(positive("promotionId", s.PromotionID), total)
}
