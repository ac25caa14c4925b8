package life

import (
	"testing"

	"bobbin/e2e/house"
)

func TestMain(m *testing.M) { house.Main(m) }
