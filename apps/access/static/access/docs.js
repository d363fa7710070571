// Starts the API page; a file of its own, as pages allow no inline script.
"use strict";

const docs = document.getElementById("docs");

window.SwaggerUIBundle({
  domNode: docs,
  url: docs.dataset.schema,
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (!["GET", "HEAD", "OPTIONS"].includes((request.method || "GET").toUpperCase())) {
      request.headers["X-CSRFToken"] = docs.dataset.csrf;
    }
    return request;
  },
});
