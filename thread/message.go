package thread

import "time"

// A Message is what a person or the agent said, as the conversation shows it.
type Message struct {
	ID          string       `json:"id"`
	Role        Role         `json:"role"`
	Text        string       `json:"text"` // the parts' texts, joined with one blank line
	State       MessageState `json:"state"`
	TurnID      string       `json:"turn_id,omitempty"` // the turn it started, steered, waits as, or came from
	Channel     string       `json:"channel"`
	ReplyTo     string       `json:"reply_to,omitempty"`
	Stopped     bool         `json:"stopped,omitempty"` // a partial answer: the turn was stopped or failed while it wrote
	CreatedAt   time.Time    `json:"created_at"`        // moves to the time of loading when the message is loaded
	Parts       []Part       `json:"parts"`
	Attachments []string     `json:"attachments"` // file ids, each once
	Mentions    []string     `json:"mentions"`    // targets, each once
}

// A Part is one arrival of a message.
type Part struct {
	Text     string    `json:"text"`
	SentAt   time.Time `json:"sent_at"`
	ClientID string    `json:"client_id,omitempty"` // the idempotency key or the channel's own message id
}

// Role says who speaks.
type Role string

// The roles of the conversation. A notice is a fixed message of the server's own.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleNotice    Role = "notice"
)

// MessageState says whether a message has reached the model.
type MessageState string

// A message of a person is queued until it is loaded (delivered) or withdrawn. What the agent and the server say is
// delivered from the start.
const (
	MessageQueued    MessageState = "queued"
	MessageDelivered MessageState = "delivered"
	MessageWithdrawn MessageState = "withdrawn"
)

// Delivery is what a client asks for when it sends a message. The zero value is DeliverAuto.
type Delivery string

// The deliveries; the table of accept in docs/state-machine.md says where each leads.
const (
	DeliverAuto      Delivery = "auto"
	DeliverSteer     Delivery = "steer"     // the running turn or nothing: ErrNoRunningTurn, ErrStopping
	DeliverTurn      Delivery = "turn"      // never the steering row
	DeliverInterrupt Delivery = "interrupt" // stop what runs, keep its partial answer, go first
)

// Disposition is where an accepted message went.
type Disposition string

// The dispositions.
const (
	DisposedTurn     Disposition = "turn"     // it started a turn
	DisposedSteering Disposition = "steering" // it waits to be loaded into the running turn
	DisposedQueued   Disposition = "queued"   // it waits as a turn of its own, or joined one that waits
)

// Withdrawn is what a withdrawal gives back to the composer.
type Withdrawn struct {
	MessageID   string   `json:"message_id"`
	Text        string   `json:"text"`
	Attachments []string `json:"attachments"`
	Mentions    []string `json:"mentions"`
}

// A Profile is how a channel behaves.
type Profile struct {
	// BurstWindow is how long after a waiting turn's oldest part another message still joins it. Negative: always.
	BurstWindow time.Duration
	// Steering says whether messages are loaded into a running turn.
	Steering bool
	// Failure says what becomes of a turn that fails.
	Failure FailurePolicy
}

// FailurePolicy says what becomes of a turn that fails.
type FailurePolicy string

// The failure policies.
const (
	FailureAsk   FailurePolicy = "ask"   // post one fixed message that asks the person
	FailureRetry FailurePolicy = "retry" // back to queued, after a growing delay; the fifth failure is final
)

// ChannelWeb is the channel of the API and the page; ChannelSMS the one of text messages.
const (
	ChannelWeb = "web"
	ChannelSMS = "sms"
)

// ProfileOf returns the profile of a channel. An unknown channel behaves as the web.
func ProfileOf(channel string) Profile {
	if channel == ChannelSMS {
		return Profile{BurstWindow: 30 * time.Second, Steering: true, Failure: FailureRetry}
	}
	return Profile{BurstWindow: -1, Steering: true, Failure: FailureAsk}
}
