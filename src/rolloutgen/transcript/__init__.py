"""transcript.jsonl: everything that was said between a scaffold and the model in one attempt. Here is its schema.

One JSON object a line, UTF-8. A line is written when what it tells happens, and belongs to the kernel then: a kill
loses no line, and at most tears the last one, which a reader passes over. Text may hold escapes of half a surrogate
pair, which strict readers refuse; a line with such (or with numbers over 64 bits) begins with a space.

Every line has ``type`` and ``at`` (UTC, ISO 8601). ``schema_version`` is 2.

start    first. schema_version; scaffold, scaffold_version, model (null: the agent asks none), and what else the writer
         knows; with a model: token_ids and logprobs, whether they are recorded
request  a call was sent to the model server.
         call      its number: 0, 1, ...
         branch    number of the conversation that it goes on with, or begins
         left      where it begins another than the first: {call, shared}: the call that it is most like, and how many
                   messages (of a prompt: characters) of that call and its reply it begins with
         side      true: no turn of the agent (a title, a condenser); such calls have branches of their own
         surface   what the scaffold spoke: chat, completions, messages
         asked     the scaffold's own parameters
         sent      the body that went to vLLM, in the form of its chat/completions or completions, but for:
         messages  a list of: a message (an object) that is new; [CALL, FROM, TO]: messages FROM to TO (exclusive) of an
                   earlier call, the same CALL throughout a line, whose own messages are followed by that of its reply;
                   a number: an earlier message. Messages are numbered 0, 1, ... as they stand in the file, requests'
                   and replies' together, each different one once
         prompt    of completions, where it is one text: a list of texts that are new, and [CALL, FROM, TO]: characters
                   of an earlier call's prompt and reply
         tools     a list that is new, or the number of an earlier one (0, 1, ...)
reply    a call has ended; without this line, a kill cut it off.
         call; end: answered, aborted (the client left or its key died), refused (4xx) or failed (our reasons);
         status: of HTTP, as the scaffold got it (null: it had left); message: the assistant's, as far as it came, new
         or by its number (completions: {text}); finish_reason, usage, id, error
         prompt_ids     a list of token ids that are new, and [CALL, FROM, TO]: ids of an earlier call's prompt and
                        response (null: not recorded)
         response_ids   of the sampled tokens; logprobs: theirs, where recorded
         prefix_break   true: the prompt's ids do not extend prompt and response of the answered call before it in its
                        branch (null: not known)
         tries          one entry an HTTP try: status or error, sec
         queued_sec, held_sec, served_sec, first_token_sec, server_seed
command  without a model: a command ran. command, exit_status, timed_out
end      last; missing after a kill. ending, and what else the writer knows

Without a model, ``messages`` of the start line is what the agent was told. ``recorder`` writes calls, ``reader`` puts
them together again; a branch is what ``tips`` says.
"""
