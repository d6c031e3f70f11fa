// "zero-shot" typed letter by letter would stop the search at "zero-": signs between words are its
// operators, and a lone "*" that it makes of them matches every page. Words alone reach it.
document.addEventListener("input", event => {
  const field = event.target
  if (!field.matches("[data-md-component=search-query]")) return
  const words = field.value.replace(/[^\p{L}\p{N}_./\s]/gu, " ").replace(/^\s+|(\s)\s+/g, "$1")
  if (words !== field.value) field.value = words
}, true)
