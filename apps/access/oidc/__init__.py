"""Single sign-on with OpenID Connect (projects-and-identity.md §6.4): what is asked of providers, what is believed."""
