/** What a client does in one step, and the JSON value it saw. */
@FunctionalInterface
public interface Step {
    Object play() throws Exception;
}
