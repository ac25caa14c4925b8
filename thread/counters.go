package thread

import "time"

// Counters are what a turn's limits count. They live on the turn's row, so that no stint that dies forgets them, and
// start over when a message is loaded, but for Used.
type Counters struct {
	Elapsed          time.Duration // since the claim, or since the last loaded message
	Rounds           int
	ToolCalls        int
	EmptyRetries     int
	MalformedRetries int
	ToolFailures     map[string]int // consecutive failures, by tool
	WrapUpWarned     bool
	ModelFailures    int   // failed model calls of the round under way
	Refused          int64 // estimated tokens of the prompt that the provider refused as too long; 0: none
	SummaryFailed    bool  // no summary could be had
	Used             Usage // by all model calls of the turn, failed ones too; never starts over
}
