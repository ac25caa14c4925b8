package api

import (
	_ "embed" // for the document
	"net/http"

	"github.com/gin-gonic/gin"
)

// document describes every route, with its limits; tests hold requests, answers and limits against it.
//
//go:embed openapi.yaml
var document []byte

func (a *api) openapi(c *gin.Context) {
	c.Data(http.StatusOK, "application/yaml", document)
}
