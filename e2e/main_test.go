package e2e

import (
	"testing"

	"bobbin/e2e/house"
)

func TestMain(m *testing.M) { house.Main(m) }
