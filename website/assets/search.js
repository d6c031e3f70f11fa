// "zero-shot" typed letter by letter would stop the search at "zero-": signs between words are its
// operators, and a lone "*" that it makes of them matches every page. Words alone reach it.
document.addEventListener("input", event => {
  const field = event.target
  if (!field.matches("[data-md-component=search-query]") || event.isComposing) return
  const words = field.value.replace(/[^\p{L}\p{M}\p{N}_./\s]/gu, " ")
  if (words === field.value) return
  const caret = field.selectionStart
  field.value = words
  field.setSelectionRange(caret, caret)
}, true)
