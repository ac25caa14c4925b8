package thread

import (
	"strings"
	"time"
)

// A File is what an owner uploaded, to be attached to messages.
type File struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`   // as the client named it, without a path
	Type      string    `json:"type"`   // media type, found from the content
	Size      int64     `json:"size"`   // bytes
	SHA256    string    `json:"sha256"` // hex
	CreatedAt time.Time `json:"created_at"`
}

// IsImage reports whether the model is shown the file as a picture.
func (f File) IsImage() bool { return strings.HasPrefix(f.Type, "image/") }

// Attached is a file that a user entry brings, as far as the model is shown it.
type Attached struct {
	File
	Read  bool   // Text and Note are what was read of it
	Text  string // of a text or a PDF; perhaps cut
	Note  string // why there is nothing to see, or not all; empty: it is whole
	Image []byte // of a picture that is shown
}
