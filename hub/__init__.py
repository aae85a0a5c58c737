"""A classroom on one machine: a JupyterHub where each learner has an account, a copy of the course, and limits.

    python -m hub add anna ben        an account each; a passphrase is printed once, as a slip
    python -m hub                     the hub; Ctrl+C stops it, and learners' work goes on
    python -m hub stop                end all of it

`settings` says what can be chosen, `people` has the accounts, `limits` what each may use, `spawner` starts a learner's
JupyterLab, `sockets` bounds who may ask how much, `configuring` puts it together for JupyterHub.
"""
