package promotion

// Attribute keys of this package's log lines, in addition to those of package pipeline.
const (
	logPromotionType = "promotion_type"
	logPromotionID   = "promotion_id"
	logTargetID      = "target_id"
)
